"""The relay after the response: what it gathers, tries again and leaves to the sweep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.outbox import background
from rollforward.outbox.background import LINGER_S, MAX_DOUBTFUL_ATTEMPTS, BackgroundRelay, by_timer
from rollforward.runtime import Clients
from rollforward.testing.injection import ERROR, REPLY_LOST, UNKNOWN_OUTCOMES
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.outbox.gates import Gate, ManualTimer, finish
from tests.rollforward.outbox.order_tasks import Order, Settle, Step, place, settle, step, waiting
from tests.rollforward.outbox.rows import enqueue, give_up, sent, steps_sent

pytestmark = pytest.mark.fast

_START = threading.Thread.start


def test_the_answer_does_not_wait_for_cloud_tasks(
    world: World, gate: Gate, behind: Clients
) -> None:
    """The transaction returns before the call that creates its task."""
    clients = behind

    with world.context():
        enqueue(clients, "pack")
    assert gate.was_asked.wait(20)
    assert len(waiting(world)) == 1
    gate.is_open.set()
    finish(clients)

    assert steps_sent(world) == ["pack"]
    assert waiting(world) == []


def test_what_comes_together_goes_out_together(world: World, gate: Gate, behind: Clients) -> None:
    """The tasks of five transactions that came during one call are created by the next."""
    clients = behind

    with world.context():
        enqueue(clients, "s0")
        assert gate.was_asked.wait(20)
        for i in range(1, 6):
            enqueue(clients, f"s{i}")
    gate.is_open.set()
    finish(clients)

    assert gate.sizes == [1, 5]
    assert steps_sent(world) == [f"s{i}" for i in range(6)]


def test_what_comes_just_behind_a_call_goes_out_together(
    world: World, gate: Gate, behind: Clients
) -> None:
    """A lone row does not wait; after its call the relay gathers rows for a moment."""
    pauses: list[float] = []
    paused, go_on = threading.Event(), threading.Event()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        paused.set()
        assert go_on.wait(20)

    gate.is_open.set()
    clients = replace(behind, relay=BackgroundRelay(pause))

    with world.context():
        enqueue(clients, "s0")
        assert paused.wait(20)
        enqueue(clients, "s1")
        enqueue(clients, "s2")
    go_on.set()
    finish(clients)

    assert gate.sizes == [1, 2]
    assert pauses == [LINGER_S, LINGER_S]
    assert waiting(world) == []


def test_the_relay_survives_an_error(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer
) -> None:
    """Rows of a failed call are retried a second later, and the next call is made at once."""
    gate.errors = [RuntimeError("a bug")]
    gate.is_open.set()

    with world.context():
        enqueue(behind, "lost")
        finish(behind)
        enqueue(behind, "found")
        finish(behind)
    assert steps_sent(world) == ["found"]
    timer.pass_one()
    finish(behind)

    assert steps_sent(world) == ["found", "lost"]
    assert waiting(world) == []
    assert timer.acts == []


@pytest.mark.parametrize("failures", [1, 3, 9])
def test_a_call_that_nobody_answered_is_made_again_until_it_is_answered(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer, failures: int
) -> None:
    """B1, B5: however long Cloud Tasks is away, the process itself creates the tasks afterwards."""
    gate.answers = [rpc_errors.ServiceUnavailable("away")] * failures
    gate.is_open.set()

    with world.context():
        enqueue(behind, "pack")
    made_at: list[int] = []
    for second in range(30):
        finish(behind)
        made_at += [second] * (len(gate.sizes) - len(made_at))
        timer.pass_one()

    assert made_at == [0, 1, 3, 6, 9, 12, 15, 18, 21, 24][: failures + 1]
    assert steps_sent(world) == ["pack"]
    assert waiting(world) == []
    assert timer.acts == []


def test_a_queue_that_does_not_answer_is_asked_by_one_call_however_many_rows_wait(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer
) -> None:
    """An outage is not met by a storm of calls; after its end all rows go out in one second."""
    gate.answers = [rpc_errors.ServiceUnavailable("away")] * 2
    gate.is_open.set()
    steps = [f"s{i}" for i in range(250)]

    with world.context():
        enqueue(behind, *steps)
    sizes = []
    for _ in range(4):
        finish(behind)
        sizes.append(gate.sizes.copy())
        gate.sizes.clear()
        timer.pass_one()

    assert sizes == [[100], [100], [], [100, 100, 50]]
    assert steps_sent(world) == sorted(steps)
    assert waiting(world) == []


def test_a_queue_that_does_not_answer_holds_up_no_other(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer
) -> None:
    """B7: rows of another queue behind a call that is not answered go out at once."""
    gate.answers = [rpc_errors.ServiceUnavailable("away")]
    gate.is_open.set()
    steps = [f"s{i}" for i in range(150)]

    def body() -> None:
        for step_name in steps:
            outbox.enqueue(behind, step, Step("o", step_name))
        outbox.enqueue(behind, settle, Settle("o", "row"))

    with world.context():
        transact(body)
    finish(behind)
    fan_out = sent(world, "fan-out")
    sent_before = steps_sent(world)
    timer.pass_one()
    finish(behind)

    assert fan_out == [{"order": "o", "row": "row"}]
    assert sent_before == []
    assert steps_sent(world) == sorted(steps)


def test_rows_that_a_bug_keeps_from_their_tasks_are_left_to_the_sweep(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer
) -> None:
    """A process retries a bug a few times, and keeps nothing in memory for it."""
    gate.errors = [RuntimeError("a bug")] * MAX_DOUBTFUL_ATTEMPTS
    gate.is_open.set()

    with world.context():
        enqueue(behind, "pack")
    for _ in range(30):
        finish(behind)
        timer.pass_one()

    assert gate.sizes == [1] * MAX_DOUBTFUL_ATTEMPTS
    assert timer.acts == []
    assert len(waiting(world)) == 1


def test_what_is_refused_is_not_asked_for_again_at_once(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer
) -> None:
    """B7: a queue that is missing comes with the next minutes, if at all."""
    gate.answers = [rpc_errors.NotFound("no such queue")]
    gate.is_open.set()

    with world.context():
        enqueue(behind, "pack")
    finish(behind)

    assert timer.acts == []
    assert len(waiting(world)) == 1


@pytest.mark.parametrize("code", UNKNOWN_OUTCOMES, ids=lambda code: code.name)
def test_a_process_finds_out_what_it_does_not_know(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer, code: grpc.StatusCode
) -> None:
    """B1, B5: the caller got an error, but the commit exists: the process relays its rows."""
    gate.is_open.set()

    with world.context():
        give_up(world, behind, f"{REPLY_LOST}:{code.name}")
    finish(behind)

    assert steps_sent(world) == ["pack"]
    assert waiting(world) == []
    assert timer.acts == []


def test_a_commit_that_lands_late_is_found(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer
) -> None:
    """B1, B5: the first look finds nothing, and one some seconds later does."""
    gate.is_open.set()

    with world.context():
        give_up(world, behind, ERROR)
        finish(behind)
        looked = len(gate.sizes)
        [_, [errand], *_] = [[], *filter(None, behind.relay._delayed)]  # type: ignore[attr-defined]
        Order(id="o").put()
        errand.row.put()
    for _ in range(2):
        timer.pass_one()
        finish(behind)

    assert looked == 0
    assert steps_sent(world) == ["pack"]
    assert waiting(world) == []


def test_a_look_that_fails_is_made_again(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer
) -> None:
    """B1, B5: Datastore is away a little longer than the transaction tried."""
    gate.is_open.set()
    away = threading.Event()
    sound = world.plan.around

    def around(name: str, effect: Any, error: Any, *described: Any) -> Any:
        if name == "Lookup" and away.is_set():
            raise error(grpc.StatusCode.UNAVAILABLE)
        return sound(name, effect, error, *described)

    world.plan.around = around  # type: ignore[method-assign]
    away.set()
    with world.context():
        give_up(world, behind, REPLY_LOST)
        finish(behind)
    steps = steps_sent(world)
    away.clear()
    timer.pass_one()
    finish(behind)

    assert steps == []
    assert steps_sent(world) == ["pack"]


def test_what_was_never_committed_is_looked_for_a_few_times(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer
) -> None:
    """B2: nothing is created, and the process does not look for ever."""
    gate.is_open.set()

    with world.context():
        give_up(world, behind, ERROR)
    finish(behind)
    looked_before = len(world.plan.calls)
    for _ in range(12):
        with world.plan.watched():
            timer.pass_one()
            finish(behind)

    assert world.plan.calls[looked_before:] == ["Lookup"] * (MAX_DOUBTFUL_ATTEMPTS - 1)
    assert sent(world) == []
    assert timer.acts == []


@pytest.mark.parametrize("error", [ValueError("a bug"), rpc_errors.Aborted("a race")])
def test_what_cannot_be_committed_is_not_looked_for(
    world: World, gate: Gate, behind: Clients, error: Exception
) -> None:
    """A bug or a lost race leaves no doubt, so it costs no look."""
    with world.context(), world.plan.watched():
        with pytest.raises(type(error)):
            transact(lambda: place_and_raise(behind, error), attempts=1)
        finish(behind)

    assert "Lookup" not in world.plan.calls


def place_and_raise(clients: Clients, error: Exception) -> None:
    place(clients, "o")
    raise error


def test_a_timer_acts_on_another_thread_and_holds_no_process_up() -> None:
    """A retry is made, unless the process ends before."""
    threads: list[tuple[bool, bool]] = []
    done = threading.Event()

    def act() -> None:
        thread = threading.current_thread()
        threads.append((thread.daemon, thread is threading.main_thread()))
        done.set()

    by_timer(0, act)

    assert done.wait(20)
    assert threads == [(True, False)]


def test_a_process_that_ends_leaves_what_nobody_answered_for_to_the_sweep(
    world: World, gate: Gate
) -> None:
    """B1: the interpreter starts no thread any more; the relay says so and ends well."""
    gate.answers = [rpc_errors.ServiceUnavailable("away")]
    gate.is_open.set()

    def ending(seconds: float, act: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    ending_relay = BackgroundRelay(schedule=ending)
    clients = replace(world.clients, tasks=gate, relay=ending_relay)  # type: ignore[arg-type]

    with world.context():
        enqueue(clients, "pack")
        finish(clients)
        enqueue(clients, "print")
        finish(clients)

    assert steps_sent(world) == ["print"]
    assert len(waiting(world)) == 1


def test_the_relay_outlives_a_thread_that_could_not_be_started(
    world: World, gate: Gate, timer: ManualTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: no room for its thread, then none for its timer: the next transaction tries again."""
    full = [RuntimeError("can't start new thread")]
    gate.answers = [rpc_errors.ServiceUnavailable("away")]

    def start(thread: threading.Thread, act: Callable[[threading.Thread], None] = _START) -> None:
        if full and thread.name.startswith("outbox"):
            raise full.pop()
        act(thread)

    def schedule(seconds: float, act: Callable[[], None]) -> None:
        if full:
            raise full.pop()
        timer(seconds, act)

    monkeypatch.setattr(threading.Thread, "start", start)
    relay = BackgroundRelay(schedule=schedule)
    clients = replace(world.clients, tasks=gate, relay=relay)  # type: ignore[arg-type]

    with world.context():
        enqueue(clients, "fold")
        enqueue(clients, "pack")
        assert gate.was_asked.wait(20)
        full.append(RuntimeError("can't start new thread"))
        gate.is_open.set()
        finish(clients)
        assert not full
        enqueue(clients, "print")
        finish(clients)
    timer.pass_one()
    finish(clients)

    assert len(steps_sent(world)) == 3
    assert waiting(world) == []


def test_the_relay_keeps_no_more_than_it_may(
    world: World, gate: Gate, behind: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: what is above the limit is not kept in memory; its rows are, and the sweep finds them."""
    monkeypatch.setattr(background, "MAX_WAITING", 3)
    clients = behind

    with world.context():
        enqueue(clients, "s0")
        assert gate.was_asked.wait(20)
        enqueue(clients, *[f"s{i}" for i in range(1, 6)])
        enqueue(clients, "s6")
    gate.is_open.set()
    finish(clients)
    assert steps_sent(world) == ["s0", "s1", "s2", "s3"]
    world.clock.sleep(60)
    world.sweep()

    assert steps_sent(world) == [f"s{i}" for i in range(7)]


def test_what_is_to_be_tried_again_counts_as_kept(
    world: World, gate: Gate, behind: Clients, timer: ManualTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: a process keeps no more rows in memory than it may, and new ones go first."""
    monkeypatch.setattr(background, "MAX_WAITING", 3)
    gate.answers = [rpc_errors.ServiceUnavailable("away")]
    gate.is_open.set()

    with world.context():
        enqueue(behind, "s0", "s1", order="one")
        finish(behind)
        enqueue(behind, "s2", "s3", order="two")
        finish(behind)
    timer.pass_one()
    finish(behind)

    assert steps_sent(world) == ["s1", "s2", "s3"]
    assert len(waiting(world)) == 1


def test_transactions_on_many_threads_lose_no_task(world: World) -> None:
    """B1: eight threads enqueue through one relay; every task is there once."""
    clients = replace(world.clients, relay=BackgroundRelay())

    def enqueue_some(thread: int) -> None:
        with clients.context():
            for i in range(5):
                enqueue(clients, f"{thread}-{i}", order=f"o{thread}-{i}")

    in_threads(*[lambda thread=t: enqueue_some(thread) for t in range(8)])
    finish(clients)

    assert steps_sent(world) == sorted(f"{t}-{i}" for t in range(8) for i in range(5))
    assert waiting(world) == []
