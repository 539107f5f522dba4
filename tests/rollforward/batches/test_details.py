"""Batches as operators look at them: their facts, refusals, and trees as far as they are shown."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pytest

from rollforward.batches import TaskBatch, listing, pattern, sweep, tree
from rollforward.batches.entities import (
    COMPLETED,
    REMOVED,
    BatchPage,
    BatchResults,
    BatchState,
    BatchWork,
    page_id,
    page_key,
    pages_within,
    results_key,
    state_key,
    work_key,
)
from rollforward.batches.pattern import Batches
from rollforward.tasks.attempt_entities import TaskAttempts
from rollforward.tasks.runs import (
    RunDetails,
    RunIssue,
    RunLink,
    RunQuery,
    RunRefusedError,
    RunVerb,
    UnknownRunError,
)
from tests.infra.world import World
from tests.rollforward.batches.harness import NOTES, RAN, notes

NAMES = ["trees"]
CREATED = datetime.datetime(2031, 5, 1, 12)  # noqa: DTZ001  Datastore's are naive.
AN_HOUR_LATER = CREATED + datetime.timedelta(hours=1)


def keep(batch_id: str, parent: str = "", **fields: Any) -> None:
    """Store a batch without its members."""
    values = {"policy": "all", "keep_s": 60.0, "created": CREATED, **fields}
    row = BatchState(key=state_key(f"trees:{batch_id}"), **values)
    row.parent = f"trees:{parent}" if parent else None
    row.put()


def details(batch_id: str) -> RunDetails:
    return listing.run_details(NAMES, f"trees:{batch_id}")


def children(count: int, parent: str = "root") -> dict[str, str]:
    return {f"{parent}.{number:02d}": parent for number in range(count)}


CHAIN = {f"b{number}": f"b{number - 1}" if number else "" for number in range(8)}
NARROW = {"root": "", **children(tree.MAX_ASKED)}
FULL = {"root": "", **children(tree.MAX_BELOW)}
MORE = {"root": "", **children(tree.MAX_BELOW + 1)}
DEEP = {"root": "", **children(2), **children(1, "root.00"), **children(1, "root.01")}


@pytest.mark.parametrize(
    ("parents", "looked_at", "expected"),
    [
        (CHAIN, "b7", [f"{depth} b{depth + 2}" for depth in range(6)]),
        (NARROW, "root", ["0 root", *(f"1 {row}" for row in children(7)), "1 root.07 ..."]),
        (FULL, "root", ["0 root", *(f"1 {row} ..." for row in children(16))]),
        (MORE, "root", ["0 root ...", *(f"1 {row} ..." for row in children(16))]),
        (DEEP, "root", ["0 root", "1 root.00", "2 root.00.00", "1 root.01", "2 root.01.00"]),
        (DEEP, "root.00", ["0 root", "1 root.00", "2 root.00.00"]),
        ({"root": ""}, "root", []),
    ],
    ids=["deep", "asked", "full", "more", "both", "side", "alone"],
)
def test_a_tree_is_shown_as_far_as_a_page_reads(
    world: World, parents: Mapping[str, str], looked_at: str, expected: list[str]
) -> None:
    """Five above, sixteen below of eight; what may have more below it says so."""
    with world.context():
        for batch_id, parent in parents.items():
            keep(batch_id, parent)
        branches = details(looked_at).tree

    assert [
        f"{one.depth} {one.run.id.partition(':')[2]}{' ...' * one.left_out}" for one in branches
    ] == expected


def keep_page(letters: str, errors: Mapping[int, str]) -> None:
    page = page_id("trees:b", "added", 0, "")
    BatchPage(key=page_key(page), letters=letters, results=1).put()
    outcomes = [[0, 1, True, "a result"], *([at, 1, False, text] for at, text in errors.items())]
    BatchResults(key=results_key(page, 0), results=outcomes).put()


def keep_two() -> list[str]:
    """Return the ids of two pages of an addition; its first page's work says that it was counted.

    Those behind the first one count by the digest that both have.
    """
    ids = [page_id("trees:b", "added", number, "c0ffee") for number in range(2)]
    BatchWork(key=work_key(ids[0]), tasks=[], members=[], first=0, digest="c0ffee").put()
    return ids


@pytest.mark.parametrize("is_running", [False, True])
def test_the_facts_of_a_batch(world: World, is_running: bool) -> None:
    """Its numbers, its members and the errors of those that failed; what waits is cancelled."""
    over = {"state": COMPLETED, "outcome": "cancelled", "completed": AN_HOUR_LATER}
    fields: dict[str, Any] = {} if is_running else {**over, "cancelled": 1, "sealed": True}
    with world.context():
        keep("b", "a", members=4, done=1, failed=2, generation=3, wakes=2, **fields)
        keep_page("df.f", {1: "the second", 3: "the fourth"})
        shown = details("b")

    run, [part] = shown.run, shown.parts
    assert (run.name, run.expected, run.part_of) == ("trees", 4, RunLink("batches", "trees:a"))
    ended = None if is_running else AN_HOUR_LATER.replace(tzinfo=datetime.UTC)
    assert (run.started, run.ended) == (CREATED.replace(tzinfo=datetime.UTC), ended)
    open_count = int(is_running)
    expected = {"done": 1, "skipped": 1 - open_count, "failed": 2, "waiting": open_count}
    assert run.counts == expected
    assert (part.items, part.progressed) == ("df.f" if is_running else "dfsf", ended or run.started)
    assert shown.issues == [
        RunIssue("trees:b:added:000000:1", "failed", "the second"),
        RunIssue("trees:b:added:000000:3", "failed", "the fourth"),
    ]
    assert shown.numbers == {
        "generation": 3,
        "sealed": "no" if is_running else "yes",
        "outcome": "none yet" if is_running else "cancelled",
        "callback": "none",
        "parent": RunLink("batches", "trees:a"),
        "wakes": 2,
    }


def test_a_member_that_ran_again_is_listed_once_with_its_last_error(world: World) -> None:
    """One that has succeeded since is not listed, and later pages are not hidden by the first."""
    with world.context():
        first, second = keep_two()
        keep("b", "", members=3, done=1, failed=2, generation=2)
        BatchPage(key=page_key(first), letters="fd", results=listing.MAX_RESULTS + 2).put()
        BatchPage(key=page_key(second), letters="f", results=1).put()
        for number in range(listing.MAX_RESULTS + 2):
            errors = [[0, 1, False, f"try {number}"], [1, 1, False, "earlier"]]
            BatchResults(key=results_key(first, number), results=errors).put()
        BatchResults(key=results_key(second, 0), results=[[0, 1, False, "of page 1"]]).put()
        shown = details("b")

    assert [(issue.item.rpartition(":")[2], issue.reason) for issue in shown.issues] == [
        ("0", f"try {listing.MAX_RESULTS + 1}"),
        ("0", "of page 1"),
    ]


ENDED: dict[str, Any] = {
    "state": COMPLETED,
    "outcome": "failed",
    "members": 2,
    "done": 1,
    "failed": 1,
}
DONE: dict[str, Any] = {"state": COMPLETED, "outcome": "succeeded", "members": 1, "done": 1}


@pytest.mark.parametrize(
    ("parent", "fields", "verb", "reason"),
    [
        ("", {}, "resume", "it is a batch"),
        ("", ENDED, "cancel", "it is complete"),
        ("a", ENDED, "retry", "it is a member of trees:a: tell that"),
        ("", {"failed": 1}, "retry", "it is running"),
        ("", DONE, "retry", "no member failed or was cancelled"),
        ("", {**ENDED, "policy": "done-at", "done_at": 1, "done": 1}, "retry", "no member failed"),
    ],
)
def test_what_cannot_be_done_to_a_batch_says_why(
    world: World, parent: str, fields: Mapping[str, Any], verb: RunVerb, reason: str
) -> None:
    with world.context():
        keep("b", parent, **fields)
        with pytest.raises(RunRefusedError, match=f"^{reason}"):
            listing.control(world.clients, NAMES, "trees:b", verb)


def test_a_batch_that_no_declaration_knows_is_cancelled_and_not_run_again(world: World) -> None:
    with world.context():
        keep("b", **ENDED)
        with pytest.raises(RunRefusedError, match="declares no batch trees"):
            listing.control(world.clients, ["notes"], "trees:b", "retry")
        keep("b")
        assert listing.control(world.clients, ["notes"], "trees:b", "cancel") == "trees:b"
        assert listing.run_details(["notes"], "trees:b").run.state == "cancelled"


def test_a_batch_that_is_being_removed_is_neither_listed_nor_found(world: World) -> None:
    """Nor is one of another name or state, in a list that asks for one."""
    with world.context():
        keep("removed", state=REMOVED, outcome="failed")
        keep("cancelled", state=COMPLETED, outcome="cancelled")
        keep("failed", **ENDED)
        keep("open")
        listed = {
            query: {run.id for run in listing.list_runs(NAMES, query).runs}
            for query in (
                RunQuery(name="trees"),
                *(RunQuery(state=state, name="trees") for state in ("running", "finished")),
                RunQuery(state="cancelled", name="tree"),
            )
        }
        with pytest.raises(UnknownRunError):
            details("removed")

    named = [{"cancelled", "failed", "open"}, {"open"}, {"failed"}, set()]
    assert list(listed.values()) == [{f"trees:{row}" for row in rows} for rows in named]


class Awaited(TaskBatch):
    """Batches for which a flow waits."""

    def waiter(self, batch_id: str) -> RunLink:
        return RunLink("flows", f"{self.name}|{batch_id}")


def test_a_batch_shows_the_run_that_waits_for_it(world: World) -> None:
    """By its own declaration, whatever those beside it are called; a batch above it comes first."""
    parts = [Awaited(name, members=[]) for name in ("trea", "trees", "treez")]
    with world.context():
        keep("b")
        keep("below", "b")
        own, below = (Batches().run(world.clients, parts, f"trees:{row}") for row in ("b", "below"))
        listed = Batches().runs(world.clients, parts, RunQuery(name="trees")).runs
        alone = Batches().run(world.clients, parts[::2], "trees:b")

    waiter, above = RunLink("flows", "trees|b"), RunLink("batches", "trees:b")
    assert (own.run.part_of, own.numbers["waited_for_by"]) == (waiter, waiter)
    assert (below.run.part_of, "waited_for_by" in below.numbers) == (above, False)
    assert {run.id: run.part_of for run in listed} == {"trees:b": waiter, "trees:below": above}
    assert alone.run.part_of is None


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_first_errors_of_a_batch_are_shown(
    world: World, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(listing, "MAX_ISSUES", most)
    with world.context():
        keep("b", failed=2)
        keep_page("dff", {1: "the second", 2: "the third"})
        reasons = [issue.reason for issue in details("b").issues]

    assert reasons == ["the second", "the third"][:most]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_first_pages_of_members_are_shown(
    world: World, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The page of a batch says if there are more."""
    monkeypatch.setattr(listing, "MAX_PAGES", most)
    with world.context():
        keep("b", members=2)
        for id_ in keep_two():
            BatchPage(key=page_key(id_), letters="d").put()
        shown = details("b")

    assert (len(shown.parts), shown.has_all_parts) == (min(most, 2), most >= 2)


def gauges(world: World) -> dict[str, float]:
    with world.context():
        found = Batches().gauges(world.clients, [NOTES])
    return {gauge.name: gauge.value for gauge in found}


def test_gauges_tell_the_open_batches_and_the_oldest(world: World) -> None:
    """An hour apart; a batch that is sealed and done counts no more."""
    before = gauges(world)  # Batches of others are there already.
    for batch_id in ("first", "second"):
        with world.context():
            NOTES.populate(world.clients, batch_id, notes("a"))
        world.clock.sleep(3_600)

    both = gauges(world)
    with world.context():
        NOTES.seal(world.clients, "first")
    world.settle()
    one = gauges(world)

    counts = [found["batches_running"] - before["batches_running"] for found in (both, one)]
    assert counts == [2, 1]
    assert both["batches_oldest_seconds"] == pytest.approx(7_200, abs=2)
    assert 3_600 <= one["batches_oldest_seconds"] < 3_700


@pytest.mark.parametrize("most", [1, 4, 5, 6])
def test_gauges_count_more_batches_than_they_read(
    world: World, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Up to a limit of its own."""
    before = gauges(world)["batches_running"]
    with world.context():
        for batch_id in ("first", "second"):
            keep(batch_id)
    monkeypatch.setattr(pattern, "MAX_MEASURED", most)

    assert gauges(world)["batches_running"] == before + 2
    monkeypatch.setattr(sweep, "MAX_COUNTED", most)
    assert gauges(world)["batches_running"] == min(most, before + 2)


def test_a_member_that_fails_and_is_tried_again_is_not_said_to_wait(world: World) -> None:
    """With its number of failures and its last error, until it has ended."""
    world.fails_fast = False
    with world.context():
        NOTES.populate(world.clients, "b", notes("slow-bad", "leaf"))
        before = listing.run_details(["notes"], "notes:b")
    while not RAN["b/slow-bad"]:
        world.deliver_due()
    with world.context():
        [page] = [page.key.id() for page in pages_within("notes:b")]
        failing = listing.run_details(["notes"], "notes:b")
    world.settle()
    with world.context():
        failed = listing.run_details(["notes"], "notes:b")

    assert (before.run.counts, before.issues) == (
        {"done": 0, "skipped": 0, "failed": 0, "waiting": 2},
        [],
    )
    assert (failing.run.counts["retrying"], failing.parts[0].items[0]) == (1, "r")
    assert failing.run.counts["waiting"] + failing.run.counts["done"] == 1
    reason = "1 failure: ValueError: slow-bad fails"
    assert failing.issues == [RunIssue(f"{page}:0", "retrying", reason)]
    assert (failed.run.counts.get("retrying"), failed.parts[0].items) == (None, "fd")


@pytest.mark.parametrize(("wakes", "generation"), [(0, 1), (2, 1), (0, 3)])
def test_the_attempts_of_the_first_members_that_wait_are_looked_at(
    world: World, wakes: int, generation: int
) -> None:
    """Of the task that a walk of the sweep has created, too; ten, and of no other generation."""
    count = listing.MAX_LOOKED_AT
    with world.context():
        keep("b", members=count + 3, done=1, wakes=wakes, generation=generation)
        page = page_id("trees:b", "added", 0, "")
        BatchPage(key=page_key(page), letters="d" + "." * (count + 2)).put()
        members = [[0, "{}"]] * (count + 3)
        tasks = [["/tasks/note", "fan-out"]]
        work = BatchWork(key=work_key(page), tasks=tasks, members=members, first=0, digest="x")
        work.put()
        for position in range(count + 3):
            row = TaskAttempts(
                key=listing._attempts_key(work, page, position, generation, wakes),
                first=CREATED,
                expires=AN_HOUR_LATER,
                failures=position % 2 + 1,
            )
            row.put()
        other = listing._attempts_key(work, page, 0, generation + 1, wakes)
        TaskAttempts(key=other, first=CREATED, expires=AN_HOUR_LATER, failures=9).put()
        shown = details("b")

    assert shown.parts[0].items == "d" + "r" * count + ".."
    assert (shown.run.counts["retrying"], shown.run.counts["waiting"]) == (count, 2)
    assert [issue.reason for issue in shown.issues][:2] == ["2 failures", "1 failure"]
