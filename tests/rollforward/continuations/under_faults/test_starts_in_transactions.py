"""Runs that start with the commit of a transaction, or not at all."""

from __future__ import annotations

from collections import Counter

import pytest
from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations.errors import OtherJobError, UnknownRunError
from rollforward.continuations.jobs import Job
from rollforward.continuations.progress import progress, run_of
from rollforward.datastore.transactions import transact
from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.continuations.under_faults.test_continuations_under_faults import (
    WalkScenario,
)
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Walk,
    count_items,
    items_of,
    ledger,
    put_items,
    put_items_here,
)

OTHER = Job("other", "fan-out", Walk, items_of, apply=count_items)


class OrderedWalk(ndb.Model):
    starts = ndb.IntegerProperty(indexed=False, default=0)


class OrderScenario(WalkScenario):
    """Order a walk: the order and its run are one commit."""

    def begin(self, tag: str) -> None:
        if tag not in self.names:
            with self.world.plan.unwatched():
                self.names[tag] = put_items_here(self.items, tag)

        def body() -> None:
            if OrderedWalk.get_by_id(tag) is None:
                OrderedWalk(id=tag, starts=1).put()
                continuations.start(self.job, Walk(tag, group=tag), run_id=tag)

        transact(body)


@pytest.fixture
def world(services: Services) -> World:
    return World(services, [APPLY, OTHER])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_starts_in_a_transaction_walks_once_with_a_fault_at_any_call(
    world: World, kind: str
) -> None:
    """A1: a lost reply leaves the run to the sweep, which finds it."""
    Explorer(world, OrderScenario(world, APPLY, Counter())).explore([kind])


def test_a_transaction_that_fails_starts_no_run(world: World) -> None:
    """A1: the body's error takes the run's row with it, and no task was created."""

    def body() -> None:
        assert continuations.start(APPLY, Walk("run"), run_id="run")
        raise ZeroDivisionError

    with world.context():
        with pytest.raises(ZeroDivisionError):
            transact(body)
        assert world.live_tasks("fan-out") == []
        with pytest.raises(UnknownRunError):
            run_of("run")


def test_a_run_in_chains_starts_in_a_transaction(world: World) -> None:
    """A1: the ends of its chains are looked for beside the transaction."""
    names = put_items(world, 40)

    def body() -> bool:
        return continuations.start(
            APPLY, Walk("run"), run_id="run", expected=40, page_size=2, chains=4, max_rate=1_000
        )

    with world.context():
        assert transact(body)
        assert not transact(body)
        assert len(run_of("run").spans) > 1
        assert run_of("run").max_rate == 1_000
    world.settle()
    world.clock.sleep(60)
    world.settle()

    assert ledger(world, "run") == Counter(names)
    with world.context():
        assert progress("run").totals.done == 40


def test_the_id_of_another_jobs_run_is_refused_in_the_transaction(world: World) -> None:
    """A2: nothing is committed, and the run that there is stays as it is."""
    with world.context():
        continuations.start(APPLY, Walk("run"), run_id="run")
        with pytest.raises(OtherJobError, match="run run is of job apply, not other"):
            transact(lambda: continuations.start(OTHER, Walk("run"), run_id="run"))
        with pytest.raises(OtherJobError):
            continuations.start(OTHER, Walk("run"), run_id="run")
