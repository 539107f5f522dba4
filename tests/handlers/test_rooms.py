"""Imports of an app that mounts the library's endpoints."""

from __future__ import annotations

import subprocess
import sys

SHOWN = "[m for m in sys.modules if m.startswith(('handlers', 'pipelines', 'models'))]"


def test_what_any_app_mounts_brings_no_demo_along() -> None:
    """A process that imports it has no kind of the demos: an app may have a Student of its own."""
    code = f"import sys, rollforward.flask; print({SHOWN})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
