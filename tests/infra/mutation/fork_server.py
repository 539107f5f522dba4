"""Run pytest many times without loading the libraries each time: for `mutants.py`.

Reads a line of JSON for each run, {"folder", "options", "tests"}, and answers each with another,
{"code", "output"}. A run is a fork of this process, in which nothing of the project is loaded yet.
`tests` says of each how many seconds it may take; a run that outlasts all of that is killed, and
its code is None.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

# Loaded once: what the project stands on.
import aiohttp.web
import aiosmtpd.controller
import flask
import flask_wtf
import google.cloud.ndb
import google.cloud.tasks_v2
import grpc
import pydantic
import pymemcache
import pytest

LOADED = (aiohttp, aiosmtpd, flask, flask_wtf, google, grpc, pydantic, pymemcache)
LOOK_S = 0.1
START_S = 60.0


class Patience:
    """Ends a test that takes too long, and with it what the test has started."""

    def __init__(self, tests: dict[str, float]) -> None:
        self.tests = tests

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.add_marker(pytest.mark.timeout(self.tests[item.nodeid]), append=False)


def run(folder: str, options: list[str], tests: dict[str, float]) -> tuple[int | None, str]:
    """Run tests in a folder; return pytest's exit code and what it printed."""
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if not pid:
            os.setsid()
            os.chdir(folder)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.path[0] = folder
            sys.dont_write_bytecode = True
            code = pytest.main([*options, *tests], plugins=[Patience(tests)])
            sys.stdout.flush()
            os._exit(code)
        code = _awaited(pid, START_S + sum(tests.values()))
        output.seek(0)
        return code, output.read()


def _awaited(pid: int, patience_s: float) -> int | None:
    ends_s = time.monotonic() + patience_s
    while time.monotonic() < ends_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(LOOK_S)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    for line in sys.stdin:
        code, output = run(**json.loads(line))
        sys.stdout.write(json.dumps({"code": code, "output": output}) + "\n")
        sys.stdout.flush()
