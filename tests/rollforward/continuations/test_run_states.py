"""How runs begin, are cancelled, go on and end: as a whole, and not before their pages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import continuations
from rollforward.continuations.entities import CANCELLED, FINISHED, RUNNING, pages_of
from rollforward.continuations.errors import NotEndedError, UnknownRunError
from rollforward.continuations.jobs import DeferredItemError, ItemError, Job
from rollforward.continuations.progress import progress, run_of
from rollforward.runtime.clients import Clients
from rollforward.testing.world import in_threads
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Item,
    Walk,
    count_items,
    items_of,
    ledger,
    put_items,
    run_to_end,
)


def test_a_start_that_cloud_tasks_did_not_answer_begins_without_a_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3: the caller is told, and this process creates the tasks once Cloud Tasks is back."""
    names = put_items(world, 3)
    sound, answers = world.clients.tasks.create_all, [rpc_errors.ServiceUnavailable("away")]

    def away_once(messages: Any) -> Any:
        return [answers.pop() for _ in messages] if answers else sound(messages)

    monkeypatch.setattr(world.clients.tasks, "create_all", away_once)
    with world.context(), pytest.raises(rpc_errors.ServiceUnavailable):
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
    world.settle()

    assert answers == []
    assert ledger(world, "run") == Counter(names)


def test_a_run_does_not_end_before_all_its_pages(services: Services) -> None:
    """A3: the last page is done while an item of the first one waits for its next attempt."""
    tried: list[str] = []

    def busy_once(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        is_busy = not tried
        tried.extend(item.key.id() for item in items)
        return [DeferredItemError("busy") if is_busy else None for _ in items]

    job = Job("apply", "fan-out", Walk, items_of, apply=busy_once, page_size=2)
    world = World(services, [job])
    put_items(world, 6)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
    world.deliver_due()
    with world.context():
        states_before = (
            [(page.done, page.closed) for page in pages_of("run")],
            progress("run").state,
        )

    world.settle()

    assert states_before == ([(False, False), (True, False), (True, False)], RUNNING)
    with world.context():
        ended, totals = progress("run"), run_of("run").totals
    assert (ended.state, ended.totals.done, totals["done"]) == (FINISHED, 6, 6)


@pytest.mark.parametrize("chains", [1, 3])
def test_a_cancelled_run_stops_and_a_resumed_one_ends(world: World, chains: int) -> None:
    """Cancelling leaves what is left; resuming does it, once, on every chain."""
    names = put_items(world, 10)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run", chains=chains)
    world.deliver(world.engine.due()[0].task_name)
    with world.context():
        continuations.cancel("run")
    world.settle()
    with world.context():
        stopped = progress("run")
    assert stopped.state == CANCELLED
    assert stopped.totals.done < 10

    with world.context():
        continuations.resume(world.clients, {"apply": APPLY}, "run")
    world.settle()

    assert ledger(world, "run") == Counter(names)
    with world.context():
        assert progress("run").state == FINISHED


def test_nothing_is_applied_after_a_cancel_is_known(world: World) -> None:
    """A page that is halved on account of a poison item looks before each half."""
    put_items(world, 4)
    applied: list[int] = []

    def cancel() -> None:
        with world.context():
            continuations.cancel("run")

    def explode(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
        applied.append(len(items))
        if len(applied) == 1:
            in_threads(cancel)
            world.clock.sleep(2)  # An attempt looks once a second whether its run goes on.
            raise RuntimeError("poison")
        return count_items(clients, args, items)

    job = Job("apply", "fan-out", Walk, items_of, apply=explode, page_size=4)
    world = World(world.services, [job])
    names = put_items(world, 4)
    run_to_end(world, job, "run")
    assert (applied, ledger(world, "run")) == ([4], Counter())
    with world.context():
        [page] = pages_of("run")
    assert (page.receipts, page.owner) == ("....", None)

    with world.context():
        continuations.resume(world.clients, {"apply": job}, "run")
    world.settle()

    assert ledger(world, "run") == Counter(names)


def test_a_cancelled_run_is_resumed_and_not_retried(world: World) -> None:
    """Its open items are its own: a retry beside a resume would work on them twice."""
    put_items(world, 3)
    with world.context():
        continuations.start(world.clients, APPLY, Walk("run"), run_id="run")
        continuations.cancel("run")

        with pytest.raises(NotEndedError):
            continuations.retry_failed(world.clients, {"apply": APPLY}, "run")


def test_a_finished_run_can_be_neither_cancelled_nor_resumed(world: World) -> None:
    """It has told its job that all is done: it stays so."""
    put_items(world, 3)
    run_to_end(world, APPLY, "run")

    with world.context():
        continuations.cancel("run")
        cancelled = progress("run").state
        continuations.resume(world.clients, {"apply": APPLY}, "run")
        assert (cancelled, progress("run").state) == (FINISHED, FINISHED)
    assert world.engine.due() == []


def test_a_run_whose_id_can_be_no_runs_is_unknown(world: World) -> None:
    """Half of a surrogate pair is in no key."""
    for use in (run_of, continuations.cancel):
        with world.context(), pytest.raises(UnknownRunError):
            use("\ud800")
