"""The rows that keep a run's totals: exact, whoever writes, and read in a few reads."""

from __future__ import annotations

import datetime
import itertools
import random
from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations import listing
from rollforward.continuations import sweep as sweeps
from rollforward.continuations.entities import (
    CANCELLED,
    TOTALS_SLOTS,
    ContinuationPage,
    ContinuationRun,
    ContinuationTotals,
    page_key,
    pages_of,
    run_key,
)
from rollforward.continuations.jobs import Job
from rollforward.continuations.pages import seen_pages
from rollforward.continuations.pages import slots as run_slots
from rollforward.continuations.pages.totals import PageSums, is_missed, slot_totals, uncounted
from rollforward.continuations.progress import RunTotals, progress
from rollforward.continuations.sweep import delete_expired, sweep
from rollforward.runtime.channel.rpc import Cost
from rollforward.tasks.runs import RunQuery
from rollforward.testing.injection import ERROR, REPLY_LOST
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import APPLY, Walk, deliver_job, put_items

PAGE_ITEMS = 2


def start(world: World, items: int, *, job: Job[Any, Any] = APPLY, chains: int = 1) -> None:
    put_items(world, items)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run", chains=chains)


def check_exact(run_id: str = "run") -> None:
    """Check that the slots, and what no slot has, add up to what the pages do."""
    pages = pages_of(run_id).fetch()
    sums = slot_totals(run_id).sums
    for page in pages:
        assert page.owner is not None or not is_missed(page), page
        sums += uncounted(page)
    assert RunTotals.of_sums(sums, 1) == RunTotals.of(pages, 1)


def store_long_run(run_id: str, pages: int, *, open_pages: int = 3) -> None:
    """Store a run of so many pages, of which the last few are open, as its attempts would."""
    done = pages - open_pages
    started = datetime.datetime(2030, 5, 1)  # noqa: DTZ001
    rows: list[ndb.Model] = [
        ContinuationRun(
            key=run_key(run_id), job="apply", args='{"run_id": "r"}', spans=[["", ""]],
            page_size=PAGE_ITEMS, expected=2 * pages, started=started, has_slots=True,
        )
    ]  # fmt: skip
    sums = PageSums()
    for number in range(pages):
        page = ContinuationPage(
            key=page_key(run_id, 0, number), after=str(number), next=str(number + 1),
            load_from="", items=["a", "b"], receipts="dd" if number < done else "d.",
            done=number < done, owner=None if number < done else "somebody",
            updated_at=started, progressed_at=started, cost={"writes": 2},
        )  # fmt: skip
        if number < done:
            page.counted = PageSums.of(page).dump()
            sums += PageSums.of(page)
        rows.append(page)
    key = ndb.Key(ContinuationTotals, f"{run_id}:3")
    rows.append(ContinuationTotals(key=key, sums=sums.dump(), updated_at=started))
    for at in range(0, len(rows), 400):
        ndb.put_multi(rows[at : at + 400])


def cost_of(world: World, run_id: str, *, dots: bool) -> Cost:
    with world.context():
        before = world.clients.meter.total()
        progress(run_id, now=world.clock.now(), dots=dots, clients=world.clients)
        return world.clients.meter.total() - before


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_poll_reads_as_much_of_a_long_run_as_of_a_short_one(world: World) -> None:
    """At 400 pages and at 1,000: its totals, its list entry, its dots, first and later."""
    reads = []
    for run_id, pages in (("short", 400), ("long", 1_000)):
        with world.context():
            store_long_run(run_id, pages)
        before = world.clients.meter.total().reads
        with world.context():
            first = progress(run_id, clients=world.clients)
            first_reads = world.clients.meter.total().reads - before
            assert first.is_partly_shown
            assert first.totals.done == 2 * (pages - 3)  # The open ones are read last.
            while progress(run_id, clients=world.clients).is_partly_shown:
                pass
            run = progress(run_id, clients=world.clients)
            assert (len(run.pages), run.totals) == (pages, progress(run_id).totals)
        polls = [cost_of(world, run_id, dots=dots).reads for dots in (True, False)]
        with world.context():
            before = world.clients.meter.total()
            listing.list_runs({}, RunQuery())
            listed = (world.clients.meter.total() - before).reads
        reads.append((first_reads, *polls, listed - len(reads) * (1 + TOTALS_SLOTS)))

    assert reads[0] == reads[1]
    first_reads, poll, sums, _ = reads[0]
    assert first_reads == 1 + TOTALS_SLOTS + seen_pages.MAX_READ
    # The run, its totals, three open pages, and a look for two behind the last one.
    assert poll == 1 + TOTALS_SLOTS + 3 + 2
    assert sums == 1 + TOTALS_SLOTS


def test_what_waits_takes_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages are open: each look reads some, and one after the other all."""
    monkeypatch.setattr(seen_pages, "MAX_READ", 10)
    with world.context():
        store_long_run("run", 40, open_pages=40)
        for _ in range(20):
            shown = progress("run", clients=world.clients)
        assert len(shown.pages) == 40
        for page in pages_of("run").fetch():
            page.receipts = "dd"
            page.put()
        for _ in range(6):
            shown = progress("run", clients=world.clients)

        assert {dots.letters for dots in shown.pages} == {"dd"}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["apply", "deliver"])
def test_totals_are_exact_after_each_delivery(services: Services, seed: int, kind: str) -> None:
    """In any order, doubled, by two processes, and after a restart of each."""
    chance = random.Random(f"{seed} {kind}")
    job = APPLY if kind == "apply" else deliver_job(Counter())
    world = World(services, [job])
    start(world, 30, job=job, chains=2)
    while due := world.engine.due():
        for task in chance.sample(due, min(len(due), 2)):
            world.deliver(task.task_name)
        if chance.random() < 0.3:
            world.clients.process_state.clear()
        with world.context():
            check_exact()
            assert progress("run", dots=False).totals == progress("run").totals

    with world.context():
        assert progress("run").totals.done == 30


@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
def test_a_commit_that_failed_or_was_made_counts_once(services: Services, kind: str) -> None:
    """At each call of a delivery; the attempt that comes after it counts the rest."""
    job = deliver_job(Counter())
    world = World(services, [job])
    at = 0
    while True:
        world.engine.reset()
        put_items(world, 4, "g")
        with world.context():
            continuations.start(world.clients, job, Walk(f"run{at}"), run_id=f"run{at}")
        world.plan.reset(kind, at)
        with world.plan.watched():
            world.deliver(world.engine.due()[0].task_name)
        with world.context():
            check_exact(f"run{at}")
        fired = bool(world.plan.fired)
        world.plan.reset(kind, None)
        world.settle(revives=True)
        with world.context():
            check_exact(f"run{at}")
            assert progress(f"run{at}", dots=False).totals.done == 4
        if not fired:
            break
        at += 1
    assert at > 5


def test_what_an_older_version_did_is_seen_at_once_and_counted_by_the_sweep(world: World) -> None:
    """It preserves what it does not know: what was counted of the page before is not lost."""
    start(world, 8)
    world.deliver(world.engine.due()[0].task_name)
    with world.context():
        page = page_key("run", 0, 0).get()
        counted = PageSums.load(page.counted)
        page.counted = None  # As if an older version had made all of it.
        page.put()
        slot = next(row for row in ContinuationTotals.query().fetch())
        slot.sums = (PageSums.load(slot.sums) - counted).dump()
        slot.put()

        shown = progress("run", clients=world.clients)
        assert shown.totals == progress("run").totals
        assert progress("run", dots=False).totals.done == 0
        world.clock.sleep(60)
        sweep(world.clients, {APPLY.name: APPLY})

        check_exact()
        assert progress("run", dots=False).totals.done == 2
        assert progress("run", clients=world.clients).totals == progress("run").totals
    world.settle()
    with world.context():
        check_exact()


def test_pages_are_woken_though_none_can_be_counted_and_the_mark_does_not_pass_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep counts what an older version left; the next sweep begins with it again."""
    monkeypatch.setattr(sweeps, "NOTED_EVERY", 1)
    start(world, 12)
    for _ in range(3):
        world.deliver(world.engine.due()[0].task_name)
    with world.context():
        page = page_key("run", 0, 1).get()
        slot = ContinuationTotals.query().fetch()[0]
        slot.sums = (PageSums.load(slot.sums) - PageSums.load(page.counted)).dump()
        page.counted = None
        ndb.put_multi([page, slot])

        def fail(*args: Any) -> None:
            raise rpc_errors.Aborted("contention")  # type: ignore[no-untyped-call]

        world.clock.sleep(60)
        with monkeypatch.context() as broken:
            broken.setattr(run_slots, "_count_missed", fail)
            assert sweep(world.clients, {APPLY.name: APPLY}) > 0
        assert is_missed(page_key("run", 0, 1).get())
        assert (run_key("run").get().closed or {}).get("0", 0) <= 1

        sweep(world.clients, {APPLY.name: APPLY})
        check_exact()
        assert run_key("run").get().closed == {"0": 2}


def test_shown_totals_never_go_back_although_a_page_is_given_back_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no slot when those are read, and counted when it is read."""
    with world.context():
        store_long_run("run", 5, open_pages=2)
        shown = progress("run", clients=world.clients).totals

        def read_early(run_id: str) -> Any:
            slots = slot_totals(run_id)
            page = page_key(run_id, 0, 4).get()
            row = ContinuationTotals(
                key=ndb.Key(ContinuationTotals, f"{run_id}:0"),
                sums=uncounted(page).dump(), updated_at=page.updated_at,
            )  # fmt: skip
            page.owner, page.counted = None, PageSums.of(page).dump()
            ndb.put_multi([page, row])
            return slots

        with monkeypatch.context() as early:
            early.setattr(seen_pages, "slot_totals", read_early)
            assert progress("run", clients=world.clients).totals == shown
        assert progress("run", clients=world.clients).totals == shown == progress("run").totals


def test_chains_take_turns_and_their_open_pages_are_read_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More chains may go on than one look can ask for their next pages."""
    monkeypatch.setattr(seen_pages, "MAX_READ", 8)
    monkeypatch.setattr(seen_pages, "MAX_CHAINS", 2)
    with world.context():
        store_long_run("run", 1, open_pages=1)
        run, first = run_key("run").get(), page_key("run", 0, 0).get()
        run.spans = [["", ""]] * 9
        ndb.put_multi([run, *copies(first, 0, "d.")])
        for _ in range(2):
            progress("run", clients=world.clients)
        ndb.put_multi([*copies(first, 0, "dd"), *copies(first, 1, "d.")])
        for _ in range(10):
            shown = progress("run", clients=world.clients)

        assert Counter(dots.letters for dots in shown.pages) == {"dd": 9, "d.": 9}


def copies(page: ContinuationPage, number: int, receipts: str) -> list[ContinuationPage]:
    """Return a page of this number for each of nine chains."""
    values = {**page.to_dict(), "receipts": receipts}
    return [ContinuationPage(key=page_key("run", chain, number), **values) for chain in range(9)]


def test_looks_at_a_run_that_does_not_fit_into_memory_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it take that of a run that was asked for lately."""
    monkeypatch.setattr(seen_pages, "MAX_READ", 10)
    monkeypatch.setattr(seen_pages, "MAX_REMEMBERED_BYTES", 30 * (seen_pages.PAGE_BYTES + 2))
    with world.context():
        for run_id in ("first", "second"):
            store_long_run(run_id, 40, open_pages=0)
        looks = {run_id: looks_at(world, run_id) for run_id in ("first", "second")}
        assert looks["first"] <= 5
        assert looks["second"] == 1
        monkeypatch.setattr(seen_pages, "ASKED_LATELY_S", 0.0)
        assert 1 < looks_at(world, "second") <= 5


def looks_at(world: World, run_id: str) -> int:
    """Look at a run until that brings no more; return how often that was."""
    return next(
        looks
        for looks in itertools.count(1)
        if looks > 20 or not progress(run_id, clients=world.clients).is_partly_shown
    )


def test_the_details_of_a_cancelled_run_add_what_a_killed_attempt_had_committed(
    world: World,
) -> None:
    """It is in no slot until the run is resumed: a list does not have it."""
    with world.context():
        store_long_run("run", 5, open_pages=2)
        run = run_key("run").get()
        run.state = CANCELLED
        run.put()
        assert listing.run_details({}, "run").run.counts["done"] == 8
        [listed] = listing.list_runs({}, RunQuery()).runs
        assert listed.counts["done"] == 6


def test_a_run_of_an_older_version_is_counted_by_its_pages(world: World) -> None:
    """Its row does not say that it has slots: no attempt writes one, and its pages are read."""
    start(world, 8)
    with world.context():
        run = run_key("run").get()
        run.has_slots = False
        run.put()
    world.deliver(world.engine.due()[0].task_name)
    with world.context():
        assert progress("run", dots=False).totals.done == 2
        [listed] = listing.list_runs({}, RunQuery()).runs
        assert listed.counts["done"] == 2
        assert ContinuationTotals.query().fetch() == []
    world.settle()
    with world.context():
        assert progress("run", clients=world.clients).totals.done == 8


def test_slots_go_with_their_pages(world: World) -> None:
    """30 days after the end the totals are in the run's row only."""
    start(world, 8)
    world.settle()
    with world.context():
        assert ContinuationTotals.query().fetch()
        kept = asdict(progress("run").totals)
        world.clock.sleep(31 * 24 * 3600)
        delete_expired(world.clients)
        assert ContinuationTotals.query().fetch() == []
        assert asdict(progress("run", dots=False).totals) == kept
