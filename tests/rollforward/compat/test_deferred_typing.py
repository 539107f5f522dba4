"""Type checkers know deferred calls, and apps without them do not pay for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.documents import ROOT
from tests.infra.runs import sampling

OLD_APP = """
from rollforward.compat import deferred

@deferred.deferrable
def send(user_id: int, subject: str = "") -> str:
    return subject

@deferred.deferrable(queue="mail")
def count(number: int) -> None: ...

def plain(number: int) -> None: ...

subject: str = send(7)
deferred.defer(send, 7)
deferred.defer(send, 7, subject="x")
deferred.defer(send, 7, subject="x", _countdown=60)
deferred.defer(send, 7, _queue="mail", _name="x", _transactional=True)
send.enqueue(send.bind(7, subject="x"), delay_s=60)
deferred.defer(count, 1)
"""
MISTAKES = """
deferred.defer(send, "7")
deferred.defer(send)
deferred.defer(send, 7, title="x")
deferred.defer(send, 7, _countdown="soon")
deferred.defer(plain, 7)
deferred.defer(lambda: None)
number: int = send(7)
send("7")
send.bind("7")
"""
WITH_DEFERRED = "import rollforward.compat, sys; print(*sys.modules)"
WITHOUT = "import rollforward as rf, sys; rf.serve, rf.Registry; print(*sys.modules)"


@sampling.long
@pytest.mark.timeout(300)
def test_mypy_takes_the_calls_of_an_old_app_and_not_its_mistakes(tmp_path: Path) -> None:
    """Arguments of calls without options are checked; those of the others by `defer`."""
    (tmp_path / "app.py").write_text(OLD_APP, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(OLD_APP + MISTAKES, encoding="utf-8")
    first = OLD_APP.count("\n") + 2

    shown = mypy(tmp_path)

    errors = re.findall(r"^(\w+)\.py:(\d+): error: ", shown, re.MULTILINE)
    assert errors == [("wrong", str(first + i)) for i in range(MISTAKES.count("\n") - 1)], shown


def mypy(folder: Path) -> str:
    """Return what mypy says of the modules in a folder."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-untyped-imports"]
    done = subprocess.run(
        [*command, "--cache-dir", str(ROOT / ".mypy_cache/deferred"), "app.py", "wrong.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(("program", "has_it"), [(WITHOUT, False), (WITH_DEFERRED, True)])
def test_only_an_app_that_imports_deferred_loads_it(program: str, has_it: bool) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert ("rollforward.compat" in shown.stdout.split()) is has_it
