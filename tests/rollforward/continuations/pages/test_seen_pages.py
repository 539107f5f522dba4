"""What a process remembers of pages: who asks again is told the same, and pays for changes."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations.entities import (
    TOTALS_SLOTS,
    ContinuationPage,
    ContinuationRun,
    run_key,
    totals_keys,
)
from rollforward.continuations.jobs import (
    DeferredItemError,
    ItemError,
    Job,
    RefusedItemError,
    SkippedItemError,
)
from rollforward.continuations.pages import seen_pages
from rollforward.continuations.pages.seen_pages import PageCache, seen_run
from rollforward.continuations.pages.totals import PageSums
from rollforward.continuations.progress import item_issues, progress, run_of
from rollforward.runtime import Clients
from rollforward.runtime.channel.rpc import Cost
from tests.infra.memory_datastore import offline
from tests.infra.runs import sampling
from tests.infra.world import World
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Item,
    Walk,
    items_of,
    put_items,
    run_to_end,
)

STARTED = datetime.datetime(2030, 5, 1)  # noqa: DTZ001  Datastore's are naive.
# By the number of an item: what becomes of it. A deferred one is tried again a second later.
ENDS = {
    3: SkippedItemError("told before"),
    5: RefusedItemError("é" * 30),
    7: DeferredItemError("later"),
}


def work(clients: Clients, args: Walk, items: Sequence[Item]) -> list[ItemError | None]:
    return [ENDS.get(item.value % 11) for item in items]


MIXED = Job(
    "mixed", "fan-out", Walk, items_of,
    apply=work, page_size=3, max_attempts=3, retry_delays_s=(1.0,),
)  # fmt: skip


def deliver_some(world: World, chance: random.Random, limit: int) -> bool:
    """Deliver up to so many due tasks, in any order; return whether there were any."""
    due = world.engine.due()
    for task in chance.sample(due, min(len(due), chance.randint(1, limit))):
        world.deliver(task.task_name)
    return bool(due)


def asked(world: World, run_id: str) -> Cost:
    """Ask how far a run is; return what that cost."""
    with world.context():
        cost_before = world.clients.meter.total()
        progress(run_id, now=world.clock.now(), clients=world.clients)
        return world.clients.meter.total() - cost_before


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chains", [1, 3])
def test_who_asks_again_is_told_what_is_stored(world: World, seed: int, chains: int) -> None:
    """A3: rarely or often, while pages are done out of order and items wait for another attempt."""
    chance = random.Random(f"{seed} {chains}")
    world = World(world.services, [MIXED])
    put_items(world, 70)
    with world.context():
        continuations.start(
            world.clients, MIXED, Walk("run"), run_id="run", chains=chains, expected=70
        )

    looks = 0
    while True:
        is_due = deliver_some(world, chance, limit=6)
        if chance.random() < 0.4 or not is_due:
            looks += 1
            now_utc = world.clock.now()
            with world.context():
                cached = progress("run", now=now_utc, clients=world.clients)
                assert cached == progress("run", now=now_utc)
                issues = item_issues("run", clients=world.clients)
                assert issues == item_issues("run")
        if not is_due:
            if world.engine.wake_at() is None:
                break
            world.clock.sleep(1.5)

    assert looks > 5
    # 70 items: of eleven one each is skipped, refused, and deferred until it has failed.
    ends = Counter(str(ENDS.get(number % 11) and number % 11) for number in range(70))
    assert cached.totals.done == ends["None"]
    assert cached.totals.failed == ends["5"] + ends["7"]
    assert len(issues) == 70 - ends["None"]


@sampling.long
def test_to_ask_again_costs_what_changed_and_not_what_there_is(world: World) -> None:
    """Ten pages were done, or sixty: the same reads, and no query that looks at all of them."""
    costs = []
    for run_id, done in (("few", 10), ("many", 60)):
        world.engine.reset()
        put_items(world, 140, run_id)
        with world.context():
            walk = Walk(run_id, run_id)
            continuations.start(world.clients, APPLY, walk, run_id=run_id, chains=1)
        for _ in range(done):
            world.deliver(world.engine.due()[0].task_name)
        first_cost = asked(world, run_id)
        for _ in range(3):
            world.deliver(world.engine.due()[0].task_name)
        asked(world, run_id)
        costs.append(asked(world, run_id))
        assert first_cost.reads >= done

    assert costs[0] == costs[1]
    # The run, the rows of its totals, and a look for the two pages behind the last one.
    assert costs[0].reads == 1 + TOTALS_SLOTS + 2


def test_a_run_that_has_ended_is_read_once(world: World) -> None:
    """Its pages change no more: a page that shows it costs a read of its row."""
    put_items(world, 24)
    run_to_end(world, APPLY, "run", chains=3)

    costs = [asked(world, "run") for _ in range(3)]

    with world.context():
        count = len(ContinuationPage.query().fetch(keys_only=True))
    assert [cost.reads for cost in costs] == [1 + count, 1, 1]


@sampling.long
def test_who_comes_back_late_reads_what_came_meanwhile_in_few_calls(world: World) -> None:
    """A chain went on for seventy pages: a few looks ahead, then all the rest at once."""
    put_items(world, 160)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run", chains=1)
    world.deliver(world.engine.due()[0].task_name)
    asked(world, "run")
    world.settle()

    cost = asked(world, "run")

    with world.context():
        assert progress("run", clients=world.clients) == progress("run")
    assert cost.reads <= 1 + 80 + max(seen_pages.LOOKED_AHEAD)
    assert cost.round_trips < 20


def test_many_open_pages_are_asked_for_by_one_query(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages wait for a retry but one in the middle: each key by itself would be a lookup."""
    monkeypatch.setattr(seen_pages, "MAX_LOOKED_UP", 2)
    put_items(world, 12)
    run_to_end(world, APPLY, "run", chains=1)
    with world.context():
        pages = ContinuationPage.query().fetch()
        for page in pages[:4]:
            page.done, page.receipts = False, ".."
            page.put()
        first_progress = progress("run", clients=world.clients)

        assert first_progress == progress("run", clients=world.clients) == progress("run")
        assert [page.done for page in first_progress.pages] == [False] * 4 + [True] * 2


def test_memory_is_bounded_and_the_run_asked_for_last_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is read again; the answers are the same."""
    for run_id in "ab":
        put_items(world, 12, run_id)
        with world.context():
            continuations.start(world.clients, APPLY, Walk(run_id, run_id), run_id=run_id, chains=1)
        world.settle()
    with world.context():
        run = run_of("a")
        [page, *_] = seen_run(None, run).pages
        monkeypatch.setattr(seen_pages, "MAX_REMEMBERED_BYTES", 4 * page.weight)
    monkeypatch.setattr(seen_pages, "ASKED_LATELY_S", 0.0)
    reads = [asked(world, run_id).reads for run_id in "aabb"]
    # Four of six pages are remembered, and the fifth and sixth looked for.
    assert reads == [7, 3, 7, 3]
    assert asked(world, "a").reads == 7  # Forgotten for the other one.

    memory = PageCache()
    with world.context():
        for run_id in "abab":
            row = run_of(run_id)
            memory.remember(row, seen_run(None, row).pages)
            pages, sums = memory.of(row)
            assert (len(pages), sums.pages, memory._weight) == (4, 4, 4 * page.weight)
            assert progress(run_id, clients=world.clients) == progress(run_id)


def test_a_run_that_begins_anew_under_its_id_is_another_one(world: World) -> None:
    """After a reset of Datastore, while the process lives on."""
    put_items(world, 8)
    run_to_end(world, APPLY, "run")
    asked(world, "run")
    with world.context():
        run = run_of("run")
        for page in ContinuationPage.query().fetch():
            page.key.delete()
        ndb.delete_multi(totals_keys("run"))
        run.started, run.totals = run.started.replace(year=2001), None
        run.put()

        assert progress("run", clients=world.clients).totals.pages == 0


def test_what_is_remembered_weighs_what_it_holds(world: World) -> None:
    """Reasons are the larger part of a page that went wrong."""
    put_items(world, 2)
    run_to_end(world, APPLY, "run")
    with world.context():
        [page] = seen_run(None, run_of("run")).pages
    wrong = replace(page, issues=[seen_pages.ItemIssue("name", "failed", "x" * 300)] * 2)

    assert wrong.weight - page.weight >= 2 * 304


@pytest.mark.parametrize(
    ("then", "shown"),
    [((2, 2), (3, 2)), ((2, 3), (3, 2)), ((3, 1), (3, 2)), ((3, 3), (3, 3)), ((4, 1), (4, 1))],
)
def test_a_look_shows_the_totals_with_the_most_ended_items(
    then: tuple[int, int], shown: tuple[int, int]
) -> None:
    """Of as many items those of more pages: a page that is given back may be seen half."""
    memory = PageCache()
    with offline():
        run = ContinuationRun(key=run_key("run"), started=STARTED)
        memory.remember(run, [])
        looks = [PageSums(Counter(d=ended), pages=pages) for ended, pages in ((3, 2), then)]
        seen = [memory.furthest(run, sums) for sums in looks][-1]

    assert (seen.ended, seen.pages) == shown
