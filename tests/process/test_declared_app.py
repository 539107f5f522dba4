"""An app that `rf.serve` has declared, behind gunicorn with the library's configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollforward.local.system.ports import free_port
from tests.infra.documents import LOCAL_ENVIRONMENT
from tests.infra.stack import ROOT, until
from tests.process.servers import CONFIG, gunicorn

pytestmark = pytest.mark.process

HELLO = """
import os
from flask import Flask
import rollforward as rf

app = Flask(__name__)

class Probe:
    def open(self):
        opening.open()
        with open(os.environ["OPENED"], "a") as opened:
            opened.write("opened ")

@rf.task
def greet(name: str) -> None: ...

serve = rf.serve(app, greet)
opening, app.extensions["rollforward"] = app.extensions["rollforward"], Probe()
"""


def test_a_worker_opens_it_when_it_starts(tmp_path: Path) -> None:
    """The first visitor does not wait, and abandoned work is recovered without one."""
    opened = tmp_path / "opened"
    (tmp_path / "hello.py").write_text(HELLO)
    with gunicorn(tmp_path, "hello:serve", OPENED=str(opened), **LOCAL_ENVIRONMENT):
        until(opened.exists, 60)

    assert opened.read_text() == "opened "


def test_a_worker_opens_an_app_that_middleware_goes_around(tmp_path: Path) -> None:
    """Its hooks did not find the app, so the first visitor opened it, or met what is missing."""
    opened = tmp_path / "opened"
    wrapped = "\nfrom werkzeug.middleware.proxy_fix import ProxyFix\nserve = ProxyFix(serve)\n"
    (tmp_path / "hello.py").write_text(HELLO + wrapped)
    with gunicorn(tmp_path, "hello:serve", OPENED=str(opened), **LOCAL_ENVIRONMENT):
        until(opened.exists, 60)

    assert opened.read_text() == "opened "


def test_a_worker_without_settings_ends_with_what_is_missing(tmp_path: Path) -> None:
    """The deployment fails at once, and not at its first visitor."""
    (tmp_path / "hello.py").write_text(HELLO)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OPENED": "/dev/null"}
    address = ("--bind", f"127.0.0.1:{free_port()}")
    ended = subprocess.run(
        [sys.executable, "-m", "gunicorn", *CONFIG, "hello:serve", *address],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert ended.returncode != 0
    assert "BadSettingsError: " in ended.stderr
