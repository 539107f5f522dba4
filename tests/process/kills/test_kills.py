"""Real processes, killed for real: every guest gets a mail, and every repeat is accounted for.

All on one stack: what makes sums, mails and grades at once is healed without cron; a quilt is
painted to its last square; and mails go out. `make test` sends 300 mails in one run and kills three
workers in the middle of it. With SOAK=1 it is 1,000 mails in each of two runs, and a kill every few
seconds to the end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness import dev_server
from benchmarks.harness.books import Books
from models.invitations import Party
from models.orders import sale_key
from models.quilt import Quilt, QuiltSquare
from pipelines.orders.progress import SaleProgress
from pipelines.orders.progress import progress as sale_progress
from rollforward.batches.entities import COMPLETED, BatchState
from rollforward.continuations.entities import FINISHED, pages_of
from rollforward.continuations.progress import RunProgress, progress
from rollforward.flows.rows.entities import FlowRun
from rollforward.runtime import SystemClock
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.runs.sampling import kills
from tests.infra.stack import Stack, running_stack, until

GUESTS, SENDS = (1000, 2) if IS_EXHAUSTIVE else (300, 1)
PAGE_SIZE = 25
KILL_EVERY_S = 2.5
KILL_AT = (0.0, 0.2, 0.4)  # Of the mails. Soon after each other, their leases end together.
RUN_TIMEOUT_S = 200
HEALED_KILLS = 4
HEALED_GUESTS = 100
SQUARES = 64
KILL_AT_SQUARES = (4, 20, 40)
ORDERS = 60
KILL_AT_CHARGES = (3, 20, 40)

# The locking emulator does the same, and takes longer.
EMULATORS = os.environ.get("PROCESS_EMULATORS", "datastore").split()


pytestmark = [pytest.mark.process, kills]


@pytest.fixture(scope="module", params=EMULATORS)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with running_stack(DATASTORE_EMULATOR=request.param, PAGE_SIZE=str(PAGE_SIZE)) as running:
        yield running


@pytest.mark.timeout(600)
def test_killed_workers_leave_nothing_to_the_sweep(stack: Stack) -> None:
    """L5: kill -9 in the middle of sums, mails and grades: all exact, without one run of cron."""
    where = {"app": stack.app.rstrip("/"), "console": stack.console}
    platform = dev_server.Stack(Path(), {}, where=where)
    with resting_cron(platform):
        page, before = new_party(stack), stack.mails()
        response = stack.post(f"{page}/sample-guests", page=page, count=str(HEALED_GUESTS))
        response.raise_for_status()
        until(lambda: ended(stack, party_of(stack, page).imports[-1]), 120)
        books = Books(platform)
        books.open()

        with books.writing():
            stack.post(f"{page}/send", page=page)
            for _ in range(HEALED_KILLS):
                enough = books.items + 20
                until(lambda least=enough: books.items >= least, 120)  # type: ignore[misc]
                platform.kill_worker()
        books.until_exact()
        (run,) = party_of(stack, page).sends
        until(lambda: ended(stack, run["run_id"]), 180)

        assert platform.sweeps() == 0
    assert len(stack.mails() - before) == HEALED_GUESTS
    assert guests_in_pages(stack, run["run_id"]) == HEALED_GUESTS


@contextlib.contextmanager
def resting_cron(platform: dev_server.Stack) -> Iterator[None]:
    """Let no sweep run by itself meanwhile."""
    platform.rest_cron()
    yield
    for job in platform.control("/api/v1/cron")["jobs"]:
        platform.control("/api/v1/cron/pause", {"name": job["name"], "paused": False})


@pytest.mark.timeout(480)
def test_a_quilt_is_finished_while_workers_are_killed(stack: Stack) -> None:
    """F1, F3: three workers die over it; no square is blank, and its batch has one generation."""
    chosen = {"size": "8", "palette": "dusk", "pattern": "waves", "pace": "watch"}
    page = f"{stack.app}/quilt"
    stack.post(page, page=page, **chosen).raise_for_status()
    for least in KILL_AT_SQUARES:
        until(lambda least=least: len(squares(stack)) >= least, 120, 0.02)  # type: ignore[misc]
        assert quilt(stack).finished is None, "it was over before a worker was killed"
        stack.control("/api/v1/workers/kill", {})
    until(lambda: quilt(stack).finished is not None, 120)

    found = quilt(stack)
    assert len(squares(stack)) == SQUARES
    assert (found.outcome, found.completion) == ("succeeded", f"quilt:{found.key.id()}:1")
    with stack.context():
        [batch] = BatchState.query().fetch()
    ends = (batch.state, batch.done, batch.failed, batch.cancelled)
    assert ends == (COMPLETED, SQUARES, 0, 0)


def squares(stack: Stack) -> list[QuiltSquare]:
    with stack.context():
        found: list[QuiltSquare] = QuiltSquare.query().fetch()
        return found


def quilt(stack: Stack) -> Quilt:
    with stack.context():
        return Quilt.query().get()


@pytest.mark.timeout(480)
def test_orders_are_charged_once_while_workers_are_killed(stack: Stack) -> None:
    """W1, W2: kill -9 between steps and during calls; no step that has ended runs again."""
    chosen = {"orders": str(ORDERS), "stock": str(ORDERS - 4), "patience": "15"}
    page = f"{stack.app}/orders"
    answer = stack.post(page, page=page, courier="two-thirds", pace="watch", **chosen)
    answer.raise_for_status()
    sale = answer.url.rpartition("/")[2].partition("#")[0]
    for least in KILL_AT_CHARGES:
        until(lambda least=least: sale_of(stack, sale).bank.calls >= least, 120, 0.02)  # type: ignore[misc]
        assert not sale_of(stack, sale).is_over, "it was over before a worker was killed"
        stack.control("/api/v1/workers/kill", {})
    until(lambda: sale_of(stack, sale).is_over, 150)

    found = sale_of(stack, sale)
    assert found.adds_up, found
    assert found.bank.held == found.stock_reserved == found.by_stage["done"]
    assert found.bank.repeats <= found.in_doubt, "a call was repeated that was not in doubt"
    with stack.context():
        flows: list[FlowRun] = FlowRun.query().fetch()
    assert len(flows) == ORDERS
    assert {flow.state for flow in flows} == {"succeeded", "rejected"}


def sale_of(stack: Stack, sale: str) -> SaleProgress:
    with stack.context():
        clock: Any = SimpleNamespace(clock=SystemClock())
        return sale_progress(clock, sale_key(sale).get())


@pytest.mark.timeout(600)
def test_mails_go_out_while_workers_are_killed(
    stack: Stack, record_property: Callable[[str, object], None]
) -> None:
    """A1, A3, A5: killed again and again, 5 % delivered twice; no guest missed, repeats counted."""
    before = stack.mails()
    page = new_party(stack)
    rows = "".join(f"Guest {i},guest{i}@example.com\n" for i in range(GUESTS))
    stack.post(f"{page}/guests", page=page, pasted=rows).raise_for_status()
    until(lambda: ended(stack, party_of(stack, page).imports[-1]), 120)
    for kind in ("overlap", "duplicate"):
        stack.control("/api/v1/faults", {"kind": kind, "rate": 0.05, "queue": "fan-out"})

    runs = []
    for number in range(SENDS):
        stack.post(f"{page}/details", page=page, title="Party", host="B", place=f"Room {number}",
                   when="2031-01-01T20:00", note="")  # fmt: skip
        runs.append(_send_under_kills(stack, page))

    mails = stack.mails() - before
    assert len(mails) == SENDS * GUESTS
    repeated = sum(mails.values()) - SENDS * GUESTS
    in_doubt = sum(run.totals.in_doubt for run in runs)
    record_property("repeated_mails", repeated)
    record_property("mails_in_doubt", in_doubt)
    assert repeated <= in_doubt
    for run in runs:
        assert (run.totals.done, run.totals.known, run.totals.failed) == (GUESTS, GUESTS, 0)
        assert guests_in_pages(stack, run.run_id) == GUESTS


def _send_under_kills(stack: Stack, page: str) -> RunProgress:
    """Press send, kill workers in the middle of the run; return how it ended."""
    sends = len(party_of(stack, page).sends)
    stack.post(f"{page}/send", page=page)
    until(lambda: len(party_of(stack, page).sends) == sends + 1, 120)
    run_id = party_of(stack, page).sends[-1]["run_id"]
    kills = _kill_until_the_end(stack, run_id) if IS_EXHAUSTIVE else _kill_some(stack, run_id)
    assert kills >= 2, "no worker was killed while it ran: nothing was proved"
    return _look(stack, run_id)


def _kill_until_the_end(stack: Stack, run_id: str) -> int:
    """Kill a worker every few seconds until the run ends; return how many were killed."""
    kills, ends_at = 0, time.monotonic() + RUN_TIMEOUT_S
    while not ended(stack, run_id):
        assert time.monotonic() < ends_at, f"not ended after {kills} kills: {_look(stack, run_id)}"
        stack.control("/api/v1/workers/kill", {})
        kills += 1
        time.sleep(KILL_EVERY_S)
    return kills


def _kill_some(stack: Stack, run_id: str) -> int:
    """Kill a worker at each of some shares of the mails; return how many the run has survived."""
    kills = 0
    for share in KILL_AT:
        least = round(share * GUESTS)
        until(lambda least=least: sent(stack, run_id) >= least, RUN_TIMEOUT_S, 0.02)  # type: ignore[misc]
        kills += not ended(stack, run_id)
        stack.control("/api/v1/workers/kill", {})
    until(lambda: ended(stack, run_id), RUN_TIMEOUT_S)
    return kills


def new_party(stack: Stack) -> str:
    form = {"title": "Party", "host": "B", "place": "Roof", "when": "2031-01-01T19:30", "note": ""}
    response = stack.post(f"{stack.app}/invitations", page=f"{stack.app}/invitations", **form)
    response.raise_for_status()
    return response.url


def party_of(stack: Stack, page: str) -> Party:
    with stack.context():
        return Party.get_by_id(page.rpartition("/")[2])


def _look(stack: Stack, run_id: str) -> RunProgress:
    with stack.context():
        return progress(run_id)


def sent(stack: Stack, run_id: str) -> int:
    return _look(stack, run_id).totals.done


def ended(stack: Stack, run_id: str) -> bool:
    return _look(stack, run_id).state == FINISHED


def guests_in_pages(stack: Stack, run_id: str) -> int:
    """Return how many different guests the run's pages hold; each must stand there once."""
    with stack.context():
        names = [name for page in pages_of(run_id) for name in page.items]
    assert len(names) == len(set(names))
    return len(names)
