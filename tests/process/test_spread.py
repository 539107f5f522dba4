"""gunicorn as it is deployed: callers who keep their connections are spread over its workers."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections import Counter
from pathlib import Path

import pytest

from rollforward.gunicorn import worker as patient
from tests.infra.stack import until
from tests.process.servers import PATIENCE_S, Server, gunicorn

pytestmark = pytest.mark.process

CALLERS = 40


def test_kept_connections_are_spread_over_the_workers(tmp_path: Path) -> None:
    """Each worker has a part of them, where the kernel gave all to the same one."""
    workers = list[bytes]()
    with contextlib.ExitStack() as kept, gunicorn(tmp_path, "standin:serve()", "-w", "2") as server:

        def call() -> bool:
            workers.append(worker_of_new_caller(kept, server))
            return len(set(workers)) == 2

        until(call, 30, every_s=0.2)  # One of them may start later.
        for _ in range(CALLERS):
            call()

    by_worker = Counter(workers)
    assert len(by_worker) == 2
    assert min(by_worker.values()) > CALLERS / 10  # On a machine that does other things as well.


def worker_of_new_caller(kept: contextlib.ExitStack, server: Server) -> bytes:
    """Connect, and stay connected; return which worker answers."""
    caller = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    kept.callback(caller.close)
    caller.request("GET", "/worker")
    return caller.getresponse().read()


def test_a_worker_knows_whether_another_one_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what each has said lately: one that ended, however many it had, keeps nobody waiting."""
    loads = patient.Loads()
    loads.report(1, 5)
    loads.report(2, 3)

    assert [loads.has_fewer(connections) for connections in (3, 4, 5)] == [False, True, True]
    monkeypatch.setattr(patient, "HEARD_WITHIN_S", 0.0)
    assert not loads.has_fewer(5)


def test_the_worker_that_has_more_waits_before_it_takes_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one takes it meanwhile."""
    waited: list[float] = []
    worker = object.__new__(patient.PatientWorker)
    worker.loads, worker.nr_conns = patient.Loads(), 1
    worker.loads.report(2, 1)
    monkeypatch.setattr(patient.time, "sleep", waited.append)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        worker.accept(listener)
        assert waited == []
        worker.loads.report(2, 0)
        worker.accept(listener)

    assert waited == [patient.YIELDS_FOR_S]
