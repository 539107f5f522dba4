"""The documentation site, built once for all workers of a run."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.documents import ROOT

RELEASE = "0.1"


def build(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Build the site of a working tree as `make docs` builds it."""
    command = [sys.executable, "-m", "docs.theme.build", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def built_site(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site: the working tree beside a release of before."""
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    site = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (site / "dev").exists():
            (site / RELEASE).mkdir(parents=True, exist_ok=True)
            (site / RELEASE / "index.html").write_text("a release", encoding="utf-8")
            built = build("--site", str(site))
            assert built.returncode == 0, built.stderr
    return site
