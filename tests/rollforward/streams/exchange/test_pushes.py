"""A push whose outcome its caller does not know."""

from __future__ import annotations

from typing import Any

from rollforward.streams import FOREVER
from rollforward.streams.exchange.ingest import inbound_record, ingest_without_wakeup
from rollforward.streams.exchange.ingest_attempt import REMEMBERED_COMMITS, IngestRequest
from rollforward.streams.storage.remote_calls import Commit, OutcomeUnknownError
from tests.rollforward.streams.simulator.driver import Came
from tests.rollforward.streams.test_failures import tally, windows


def test_a_push_whose_reply_is_lost_is_known_although_others_have_pushed_since() -> None:
    """B: a source's row remembers several commits: one request does not push another's again."""
    desk = tally()
    desk.push(Came("first", "a", 1))
    commit = desk.simulation.acts[Commit]

    def lossy(call: Commit) -> Any:
        desk.simulation.acts[Commit] = commit
        commit(call)
        for number in range(REMEMBERED_COMMITS - 1):
            desk.push(Came(f"{number}", "a", 1))
        raise OutcomeUnknownError

    desk.simulation.acts[Commit] = lossy
    records = [
        inbound_record(desk.environment, "in", {"k": "a"}, 1)
    ]  # No id tells that it came twice.
    desk.do(ingest_without_wakeup(desk.environment, IngestRequest("in", "", records)))
    desk.push(watermark=FOREVER)
    desk.run()

    assert desk.status().sources["in"].records == 1 + REMEMBERED_COMMITS
    assert windows(desk) == [[0, 1 + REMEMBERED_COMMITS]]


def test_the_row_of_a_source_does_not_grow_with_its_pushes() -> None:
    """B: it remembers its last commits and no others, so that it can always be written."""
    desk = tally()
    counts = range(1, 2 * REMEMBERED_COMMITS)

    rows = [desk.push(Came(f"{number}", "a", 1)).row.body for number in counts]

    assert [len(row.last) for row in rows] == [min(n, REMEMBERED_COMMITS) for n in counts]
    assert [earlier.last[-1] for earlier in rows[-REMEMBERED_COMMITS:]] == list(rows[-1].last)
