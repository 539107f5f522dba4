"""gunicorn's configuration: what its master reads, and what a worker therefore reads again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rollforward.gunicorn import config
from tests.infra.documents import ROOT

pytestmark = pytest.mark.fast

# As gunicorn does: the configuration by its name, then the worker that it names.
MASTER = """
import importlib, queue, sys, types
from gunicorn.app.wsgiapp import WSGIApplication

sys.argv = ["gunicorn", "--config", "python:rollforward.gunicorn.config", "shop:serve()"]
master = WSGIApplication()
assert master.cfg.worker_class.__name__ == "PatientWorker"
server = types.SimpleNamespace(SIG_QUEUE=queue.SimpleQueue(), cfg=master.cfg)
"""


def printed(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", MASTER + program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_master_reads_the_door_and_this_package_alone() -> None:
    """Whatever else it read, a reload would not load again."""
    names = printed("print(*[n for n in sys.modules if n.partition('.')[0] == 'rollforward'])")

    assert set(names) == config.READ_BY_THE_MASTER


def test_a_worker_loads_the_door_as_it_is_now() -> None:
    """A reload (SIGHUP) forks from a master that has the old one."""
    program = """
old = sys.modules["rollforward"]
master.cfg.post_fork(server, None)
import rollforward
print(rollforward is old, rollforward.Registry.__name__)
"""
    assert printed(program) == ["False", "Registry"]


def test_a_library_that_was_loaded_before_the_fork_is_kept_whole() -> None:
    """With `--preload` the app has its classes: a second copy of them would be other classes."""
    program = """
import rollforward as old
old.Registry
master.cfg.post_fork(server, None)
import rollforward
print(rollforward is old)
"""
    assert printed(program) == ["True"]
