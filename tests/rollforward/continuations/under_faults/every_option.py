"""A job with every hook and option that there is, over items that end in every way."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from google.cloud import ndb

from rollforward.continuations import ItemError, Job, runs
from rollforward.continuations.entities import FINISHED
from rollforward.continuations.errors import UnknownRunError
from rollforward.continuations.jobs import DeferredItemError, RefusedItemError, SkippedItemError
from rollforward.continuations.listing import run_details
from rollforward.continuations.progress import item_issues, progress
from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients
from tests.infra.world import World
from tests.rollforward.continuations.walk_jobs import (
    Item,
    Ledger,
    Walk,
    count_items,
    items_of,
    ledger_here,
    put_items_here,
)

# What becomes of an item, by its value.
FINE, REFUSED, SKIPPED, BUSY_ONCE, BUSY, BROKEN = range(6)
ITEMS = 6
ISSUES = {
    REFUSED: ("failed", "never"),
    SKIPPED: ("skipped", "no need"),
    BUSY: ("failed", "busy"),
    BROKEN: ("failed", "ValueError: a bug"),
}
OPTIONS: dict[str, Any] = {
    "page_size": 2,
    "max_attempts": 3,  # An item that is deferred once may meet a fault once more.
    "retry_delays_s": (1.0, 2.0),
    "lease_s": 3.0,
    "deadline_s": 30.0,
}


class FinishCall(ndb.Model):
    """How often the job of a run was told that it has finished, and what it saw then."""

    count = ndb.IntegerProperty(indexed=False, default=0)
    states = ndb.TextProperty(repeated=True)


def tell(clients: Clients, args: Walk) -> None:
    """Be the `on_finished` of a job."""

    def body() -> None:
        call = FinishCall.get_by_id(args.run_id) or FinishCall(id=args.run_id)
        call.count += 1
        call.states = [*call.states, progress(args.run_id, dots=False).state]
        call.put()

    transact(body)


def apply_job() -> Job[Walk, Item]:
    """Return the job whose effects commit with their receipts."""

    def apply(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        if any(item.value == BROKEN for item in items):
            raise ValueError("a bug")
        answers = [
            _answer(item.value, lambda item=item: _asked_before(args, item))  # type: ignore[misc]
            for item in items
        ]
        good = [item for item, answer in zip(items, answers, strict=True) if answer is None]
        count_items(clients, args, good)
        return answers

    return Job("apply", "fan-out", Walk, items_of, apply=apply, on_finished=tell, **OPTIONS)


def _asked_before(args: Walk, item: Item) -> bool:
    """Note that an item was asked for; return whether it was before."""
    key = ndb.Key(Ledger, f"asked-{args.run_id}/{item.key.id()}")
    was_asked = key.get() is not None
    Ledger(key=key).put()
    return was_asked


def _answer(value: int, was_asked: Callable[[], bool]) -> ItemError | None:
    if value == REFUSED:
        return RefusedItemError("never")
    if value == SKIPPED:
        return SkippedItemError("no need")
    if value == BUSY or (value == BUSY_ONCE and not was_asked()):
        return DeferredItemError("busy")
    return None


def side_effect_job(outside: Counter[str]) -> Job[Walk, Item]:
    """Return the job that acts on the outside world, by a remote call of its own."""

    @contextlib.contextmanager
    def open_line(clients: Clients, args: Walk) -> Iterator[Callable[[Item], None]]:
        plan = clients.cache.plan  # type: ignore[attr-defined]

        def was_asked(item: Item) -> bool:
            outside[f"asked {item.key.id()}"] += 1
            return outside[f"asked {item.key.id()}"] > 1

        def act(item: Item) -> None:
            if item.value == BROKEN:
                raise ValueError("a bug")
            if (error := _answer(item.value, lambda: was_asked(item))) is not None:
                raise error

            def effect() -> None:
                outside[item.key.id()] += 1

            plan.around("act", effect, lambda code: TimeoutError("no answer"))

        yield act

    return Job(
        "deliver", "fan-out", Walk, items_of, side_effect=open_line, on_finished=tell, **OPTIONS
    )


class EveryScenario:
    """A run with chains, a rate and every hook, beside a small one of the same job."""

    def __init__(self, world: World, job: Job[Walk, Item], outside: Counter[str]) -> None:
        self.world = world
        self.job = job
        self.outside = outside
        self.names: dict[str, list[str]] = {}

    def begin(self, tag: str) -> None:
        for run_id, count in ((tag, ITEMS), (f"{tag}-too", 1)):
            if run_id not in self.names:
                with self.world.plan.unwatched():
                    self.names[run_id] = put_items_here(count, run_id)
            self._start(run_id, count)

    def _start(self, run_id: str, count: int) -> None:
        run = runs.new_run(
            self.world.clients,
            self.job,
            Walk(run_id, group=run_id),
            run_id=run_id,
            expected=count,
            chains=2,
            max_rate=20.0,
        )
        transact(lambda: run.key.get() or run.put())
        runs.launch(self.world.clients, self.job, run_id)

    def is_done(self, tag: str) -> bool:
        try:
            return all(self._is_told(run_id) for run_id in (tag, f"{tag}-too"))
        except UnknownRunError:
            return False

    def _is_told(self, run_id: str) -> bool:
        run = progress(run_id)
        return run.state == FINISHED and FinishCall.get_by_id(run_id) is not None

    def check(self, tag: str, fault: str) -> None:
        self._check_run(tag, ITEMS, fault)
        self._check_run(f"{tag}-too", 1, fault)

    def _check_run(self, run_id: str, count: int, fault: str) -> None:
        names = self.names[run_id]
        issues = {names[value]: ISSUES[value] for value in range(count) if value in ISSUES}
        call, totals = FinishCall.get_by_id(run_id), progress(run_id).totals
        good = [name for name in names if name not in issues]

        assert (totals.done, totals.known) == (len(good), count), fault
        assert {i.name: (i.outcome, i.reason) for i in item_issues(run_id)} == issues, fault
        assert set(call.states) == {FINISHED}, fault
        assert call.count >= 1, fault
        assert call.count == 1 or fault, "told again for no reason"
        details = run_details({self.job.name: self.job}, run_id)
        assert len(details.issues) == len(issues), fault
        assert details.run.counts["waiting"] == details.run.counts["retrying"] == 0, fault
        if self.job.apply is not None:
            assert ledger_here(run_id) == Counter(good), fault
        else:
            delivered = {name: self.outside[name] for name in good}
            assert min(delivered.values()) >= 1, fault
            assert sum(delivered.values()) - len(good) <= totals.in_doubt, fault
