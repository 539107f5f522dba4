"""Workers killed in the middle of everything: exact again, and without the sweep of cron."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.books import Books
from benchmarks.dev_server import Stack, running
from tests.process.test_kills import ended, guests_in_pages, new_party, party_of
from tests.stack import Stack as Visited
from tests.stack import until

KILLS = 4
GUESTS = 100


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(PAGE_SIZE="10") as started:
        yield started


@pytest.mark.process
@pytest.mark.timeout(600)
def test_killed_workers_leave_nothing_to_the_sweep(stack: Stack) -> None:
    """kill -9 in the middle of sums, mails and grades: all exact, without one run of cron."""
    stack.rest_cron()
    visited = Visited(*(stack.where[name] for name in ("app", "console", "datastore", "project")))
    page = new_party(visited)
    response = visited.post(f"{page}/sample-guests", page=page, count=str(GUESTS))
    response.raise_for_status()

    until(lambda: ended(visited, party_of(visited).imports[-1]), 120)
    books = Books(stack)
    books.open()

    with books.writing():
        visited.post(f"{page}/send", page=page)
        for _ in range(KILLS):
            enough = books.items + 20
            until(lambda least=enough: books.items >= least, 120)
            stack.kill_worker()
    books.until_exact()
    (run,) = party_of(visited).sends
    until(lambda: ended(visited, run["run_id"]), 180)

    assert stack.sweeps() == 0
    assert len(visited.mails()) == GUESTS
    assert guests_in_pages(visited, run["run_id"]) == GUESTS
