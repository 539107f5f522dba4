"""Steps whose service is down, or whose worker dies: for how long, and how often."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.flows import RetryPolicy, Steps
from rollforward.flows.reading import FlowState
from rollforward.tasks.errors import Retry, Unavailable
from rollforward.testing.injection import CRASH_BEFORE
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.flows.probe import CODE, ID, probe, run, settle
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast


@dataclass
class Down:
    """The error of a service that is down."""

    error: Exception


DOWN = Down(Unavailable("the service is down"))


def down() -> None:
    CODE.act("asked")
    raise DOWN.error


def start(world: World, code: Callable[[Steps], object], rounds: int = 10) -> FlowState:
    """Start a flow, and deliver what is due, a round each twenty seconds."""
    CODE.run = code
    probe.start(world.clients, ID)
    return go_on(world, rounds)


def go_on(world: World, rounds: int = 10) -> FlowState:
    """Deliver what is due, a round each twenty seconds, by workers of which some die."""
    for _ in range(rounds):
        world.clock.sleep(20)
        for delivery in world.engine.due():
            world.deliver(delivery.task_name)
    return probe.state(ID)


@one_emulator
@pytest.mark.parametrize(
    "error",
    [Unavailable("the service is down"), rpc_errors.ServiceUnavailable("the service is down")],  # type: ignore[no-untyped-call]
    ids=["ours", "of Google"],
)
def test_a_service_that_is_down_counts_as_a_failure_once_the_time_is_up(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """W3: before that a policy of one attempt does not end it, and each pause is short."""
    monkeypatch.setattr(DOWN, "error", error)
    until = world.clock.now() + datetime.timedelta(minutes=10)
    policy = RetryPolicy(attempts=1, until=until)
    state = start(world, lambda step: step.retrying(policy).outside("ask", down))
    ask = state.steps["ask"]
    assert (state.state, ask.attempts, ask.is_called) == ("running", 0, False)
    assert len(CODE.done) >= 5

    world.clock.sleep(600)
    state = settle(world)
    assert (state.state, state.steps["ask"].attempts) == ("failed", 1)
    assert "the service is down" in state.reason


@one_emulator
def test_a_cancelled_flow_asks_a_service_that_is_down_a_few_times_more(world: World) -> None:
    """W14: then the call has failed, and the rest is undone."""

    def code(step: Steps) -> None:
        step.outside("a", CODE.act, "a")
        step.undo("undo a", CODE.act, "undo a")
        step.outside("ask", down)

    start(world, code)
    asked = CODE.done.count("asked")
    probe.cancel(world.clients, ID)
    state = settle(world)
    assert (state.state, CODE.done[-1]) == ("cancelled", "undo a")
    assert (state.steps["ask"].attempts, CODE.done.count("asked") - asked) == (3, 3)


@one_emulator
def test_a_call_whose_worker_dies_each_time_is_given_up(world: World) -> None:
    """W5: doubts count as failures do; the text says so, and the call is made no more."""

    def kill() -> None:
        CODE.act("called")
        world.plan.break_next("Commit", CRASH_BEFORE, 1)

    start(world, lambda step: step.outside("call", kill))
    state = settle(world)
    assert (state.state, state.steps["call"].doubts) == ("failed", 3)
    assert "its worker died over it 3 times" in state.reason
    assert CODE.done == ["called"] * 3


@one_emulator
def test_a_call_that_was_retried_is_given_up_after_as_many_deaths_again(world: World) -> None:
    """W5: deaths before the retry do not count, as failures do not; all are in doubt."""
    deaths = [5]

    def kill() -> None:
        if deaths[0]:
            deaths[0] -= 1
            world.plan.break_next("Commit", CRASH_BEFORE, 1)

    state = start(world, lambda step: step.outside("call", kill))
    assert (state.state, state.steps["call"].doubts) == ("failed", 3)
    probe.retry(world.clients, ID)
    state = go_on(world)
    assert (state.state, state.steps["call"].doubts) == ("succeeded", 5)


@one_emulator
def test_a_call_that_failed_in_doubt_is_taken_for_undone_by_nobody(world: World) -> None:
    """W15: a cancelled flow waits for a person, who cancels it once more to leave the call."""

    def kill() -> None:
        CODE.act("called")
        world.plan.break_next("Commit", CRASH_BEFORE, 1)

    def code(step: Steps) -> None:
        step.undo("undo", CODE.act, "undo")
        step.outside("call", kill)

    assert start(world, code).state == "failed"
    probe.cancel(world.clients, ID)
    state = go_on(world)
    assert (state.state, "'call' may have taken effect" in state.reason) == ("failed", True)
    assert set(CODE.done) == {"called"}
    probe.cancel(world.clients, ID)
    assert go_on(world).state == "cancelled"
    assert CODE.done[-1] == "undo"


@one_emulator
def test_a_cancellation_that_is_sent_twice_does_not_leave_what_cannot_be_undone(
    world: World,
) -> None:
    """W15: its reply was lost, or it was pressed twice; another request is another decision."""

    def kill() -> None:
        world.plan.break_next("Commit", CRASH_BEFORE, 1)

    def code(step: Steps) -> None:
        step.undo("undo", CODE.act, "undo")
        step.outside("call", kill)

    assert start(world, code).state == "failed"
    states = []
    for request_id in ("one", "one", "two"):
        assert probe.cancel(world.clients, ID, request_id=request_id)
        states.append(go_on(world).state)
    assert states == ["failed", "failed", "cancelled"]
    assert CODE.done == ["undo"]


def test_a_step_has_ten_attempts_over_a_quarter_of_an_hour(world: World) -> None:
    """W3: unless its flow, or the step, has other ones."""
    policy, now_utc = RetryPolicy(), world.clients.clock.now()
    assert [policy.is_over(failures, now_utc) for failures in (9, 10)] == [False, True]
    pauses = [policy.pause_s(failures) for failures in range(1, 10)]
    assert sum(pauses) == pytest.approx(15 * 60, rel=0.5)


@pytest.mark.parametrize("failures", [60, 5_000])
def test_a_policy_without_a_bound_pauses_for_a_year_at_most(failures: int) -> None:
    """W3: a time that has no date would fail the flow, or make its call again and again."""
    policy = RetryPolicy(attempts=None, longest_s=float("inf"))
    assert policy.pause_s(failures) == 366 * 24 * 3600


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"first_s": -1.0},
        {"first_s": 2.0, "longest_s": 1.0},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"until": datetime.datetime(2030, 5, 1)},  # noqa: DTZ001
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """W3: its bounds are taken."""
    RetryPolicy(attempts=1, first_s=0.0, factor=1.0, longest_s=0.0)
    with pytest.raises(ValueError, match="must be"):
        RetryPolicy(**wrong)


@one_emulator
@pytest.mark.parametrize("kind", ["commit", "outside"])
def test_a_step_that_pauses_is_not_called_by_a_delivery_that_has_read_the_flow_before(
    world: World, kind: str
) -> None:
    """W3: the pause is for how long a service has asked, as by Retry-After.

    Had the function of the commit kind its effect, its outcome would have ended before.
    """
    others: list[str] = []
    times: list[float] = []

    def busy() -> None:
        times.append(world.clock.time_s)
        if len(times) == 1:
            raise Retry("busy", after_s=20)

    def code(step: Steps) -> None:
        if not others:
            others.append("inner")
            attempt = world.current
            in_threads(lambda: world.answer(attempt))
        getattr(step, kind)("busy", busy)

    state = run(world, code)
    assert state.state == "succeeded"
    assert state.steps["busy"].ended - times[0] >= 20
    # The function of a commit may run in vain, as any transaction's body.
    assert kind == "commit" or len(times) == 2


@one_emulator
def test_a_call_outside_renews_its_lease_three_times_before_that_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5: with one beat in three lost, no other delivery makes the call beside it."""
    heart, periods = world.clients.heart, list[float]()

    def heartbeat(beat: Callable[[], None], every_s: float) -> Any:
        periods.append(every_s)
        return real(beat, every_s)

    real = heart.heartbeat
    monkeypatch.setattr(heart, "heartbeat", heartbeat)
    run(world, lambda step: step.outside("a", CODE.act, "a"))
    assert periods == [5]
