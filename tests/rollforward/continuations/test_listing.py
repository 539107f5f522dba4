"""Runs as an operator sees them: what a list counts, what a page shows, and what is refused."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.continuations import listing
from rollforward.continuations.entities import (
    CANCELLED,
    FINISHED,
    RUNNING,
    ContinuationPage,
    ContinuationRun,
    page_key,
    run_key,
)
from rollforward.continuations.pages.totals import PageSums
from rollforward.continuations.progress import RunTotals
from rollforward.tasks.runs import RunQuery, RunRefusedError
from tests.infra.world import World
from tests.rollforward.continuations.walk_jobs import APPLY

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

JOBS = {APPLY.name: APPLY}
NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  As Datastore's times are.


def totals_of(letters: str) -> dict[str, Any]:
    """Return the totals of a run of one page, as its row keeps them."""
    sums = PageSums()
    sums.add(letters, {}, 0)
    totals = RunTotals.of_sums(sums, 1)
    return {**vars(totals), "cost": totals.cost.as_dict()}


def put_run(run_id: str, pages: int = 0, letters: str = "dd", **values: Any) -> ContinuationRun:
    """Store a run, by default one that an older version has started, with so many pages."""
    given = {"job": APPLY.name, "state": RUNNING, "started": NOON, "expected": 0, **values}
    run = ContinuationRun(
        key=run_key(run_id), args='{"run_id": "r"}', spans=[["", ""]], page_size=2, **given
    )
    rows = [
        ContinuationPage(
            key=page_key(run_id, 0, number), after="", next=str(number + 1), load_from="",
            items=["a", "b"], receipts=letters, reasons={"1": "odd"} if "f" in letters else {},
            attempts=number, updated_at=NOON, progressed_at=NOON,
        )
        for number in range(pages)
    ]  # fmt: skip
    ndb.put_multi([run, *rows])
    return run


ENDED = {"state": FINISHED, "ended": NOON, "totals": totals_of("dd")}


def test_a_list_counts_some_pages_of_a_run_without_totals_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pages: of a run of three that is a part, of one of two it is all."""
    monkeypatch.setattr(listing, "MAX_PAGES_IN_LIST", 2)
    with world.context():
        for pages in range(1, 4):
            put_run(f"{pages} pages", pages, started=NOON - datetime.timedelta(hours=pages))
        shown = listing.list_runs(JOBS, RunQuery()).runs

    assert [(run.id, run.counts["done"], run.is_partial) for run in shown] == [
        ("1 pages", 2, False),
        ("2 pages", 4, False),
        ("3 pages", 4, True),
    ]


@pytest.mark.parametrize(("most", "pages"), [(40, 13), (1, 1)])
def test_the_reads_of_a_list_are_bounded_whatever_its_runs_are(
    world: World, most: int, pages: int
) -> None:
    """What a list may read is shared by the runs without totals; a page of each is read at least.

    A run that has ended, and the slots of one that has not, leave the less for those.
    """
    with world.context():
        put_run("ended", **ENDED)
        put_run("slots", has_slots=True)
        for number in range(2):
            put_run(f"older {number}", 20)
        query = RunQuery(limit=4, max_reads=most)
        before = world.clients.meter.total()
        shown = {run.id: run for run in listing.list_runs(JOBS, query).runs}
        spent = world.clients.meter.total() - before

    counted = {run_id: run.counts["done"] for run_id, run in shown.items()}
    assert counted == {"ended": 2, "slots": 0, "older 0": 2 * pages, "older 1": 2 * pages}
    assert spent.reads <= most or pages == 1


def test_a_list_of_runs_that_have_ended_reads_no_page(world: World) -> None:
    """Nor does it need any to share out what it may read."""
    with world.context():
        put_run("ended", 3, has_slots=True, **ENDED)
        before = world.clients.meter.total()
        [shown] = listing.list_runs(JOBS, RunQuery(max_reads=40)).runs
        spent = world.clients.meter.total() - before

    assert (shown.counts["done"], spent.reads) == (2, 1)


def test_a_run_is_listed_with_its_times_and_with_what_was_announced(world: World) -> None:
    """Nine items until it ends; then those that there were."""
    times = {"started": NOON, "expected": 9}
    with world.context():
        put_run("r", 1, "dr", **times)
        [running] = listing.list_runs(JOBS, RunQuery()).runs
        put_run("r", state=FINISHED, ended=NOON, totals=totals_of("sf"), retry_of="p", **times)
        [ended] = listing.list_runs(JOBS, RunQuery()).runs

    noon = NOON.replace(tzinfo=datetime.UTC)
    assert (running.started, running.ended, running.expected) == (noon, None, 9)
    assert running.counts == {"done": 1, "skipped": 0, "failed": 0, "retrying": 1, "waiting": 7}
    assert (ended.ended, ended.expected, ended.retry_of) == (noon, 2, "p")
    assert ended.counts == {"done": 0, "skipped": 1, "failed": 1, "retrying": 0, "waiting": 0}
    assert (running.args, running.name, running.pattern) == (
        '{"run_id": "r"}',
        "apply",
        "continuations",
    )


def test_a_run_shows_as_many_pages_and_issues_as_fit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page by its chain and number; pages that were deleted are missing, too."""
    monkeypatch.setattr(listing, "MAX_PAGES", 2)
    monkeypatch.setattr(listing, "MAX_ISSUES", 2)
    noon = NOON.replace(tzinfo=datetime.UTC)
    with world.context():
        for pages in (2, 3):
            put_run("r", pages, "df")
            shown = listing.run_details(JOBS, "r")

            assert [(part.label, part.items, part.attempts) for part in shown.parts] == [
                ("chain 0, page 0", "df", 0),
                ("chain 0, page 1", "df", 1),
            ]
            assert {part.progressed for part in shown.parts} == {noon}
            assert [issue.reason for issue in shown.issues] == ["odd"] * 2
            assert shown.run.counts["failed"] == 2
            assert (shown.run.is_partial, shown.has_all_parts) == (pages > 2, pages == 2)
        put_run("gone", state=FINISHED, ended=NOON, totals=totals_of("df"), pages_gone=True)
        assert not listing.run_details(JOBS, "gone").has_all_parts


FAILED_RUN = {"state": FINISHED, "ended": NOON, "totals": totals_of("df")}


@pytest.mark.parametrize(
    ("verb", "values", "why"),
    [
        ("retry", {}, "it is running"),
        ("resume", {"job": "gone"}, "it is running"),
        ("cancel", {"state": CANCELLED}, "it is cancelled"),
        ("retry", {"state": CANCELLED}, "it is cancelled"),
        ("resume", {"state": CANCELLED, "job": "gone"}, "no job of this app is called gone"),
        ("cancel", FAILED_RUN, "it is finished"),
        ("resume", FAILED_RUN, "it is finished"),
        ("retry", {**FAILED_RUN, "job": "gone"}, "no job of this app is called gone"),
        ("retry", {**FAILED_RUN, "totals": totals_of("ds")}, "none of its items failed"),
        ("retry", {**FAILED_RUN, "totals": None}, "none of its items failed"),
        ("retry", {**FAILED_RUN, "retried_by": "x"}, "it was retried already, as x"),
        ("retry", {**FAILED_RUN, "pages_gone": True}, "its items are kept no more"),
        ("retry", {**FAILED_RUN, "pages_until": NOON}, "run r ended at 2030-05-01"),
    ],
)
def test_what_a_run_does_not_allow_is_refused_with_the_reason(
    world: World, verb: Any, values: dict[str, Any], why: str
) -> None:
    """Its row stays as it is."""
    with world.context():
        world.clock.sleep((NOON.replace(tzinfo=datetime.UTC) - world.clock.now()).total_seconds())
        put_run("r", **values)
        row = run_key("r").get().to_dict()
        with pytest.raises(RunRefusedError) as refusal:
            listing.control(world.clients, JOBS, "r", verb)

        assert (str(refusal.value), run_key("r").get().to_dict()) == (why, row)
