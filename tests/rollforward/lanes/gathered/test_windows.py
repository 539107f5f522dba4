"""Windows: their limits, their settings that change, bad input, and calls that meet a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from rollforward.lanes import BadLaneError, Call, Gathered, debounced, throttled, unique
from rollforward.lanes.gathered import claiming, running
from rollforward.lanes.gathered.timing import MAX_WAIT_S, Debounce, Throttle
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.tasks.errors import BadArgumentsError, TooLargeError, UnknownTaskError
from rollforward.testing.injection import MEANWHILE
from rollforward.testing.world import apart
from tests.infra.world import World
from tests.rollforward.lanes.gathered.mailroom import (
    DESK,
    EVERY_S,
    MAX_S,
    SWEEP,
    WAIT_S,
    MailRun,
    Note,
    digest,
    once,
    reindex,
    sync,
)
from tests.rollforward.lanes.office import IN_ORDER


def call_each(world: World, lane: Gathered[Note], texts: Sequence[str]) -> None:
    for text in texts:
        lane.call(world.clients, "ada", Note(text))


@pytest.mark.parametrize("lane", [digest, reindex], ids=["debounced", "throttled"])
def test_a_window_beyond_the_most_calls_has_further_runs_at_once(
    world: World, lane: Gathered[Note]
) -> None:
    call_each(world, lane, "0123456")
    with mock.patch.object(claiming, "MAX_CALLS", 3):
        world.settle()
    assert DESK.texts() == [tuple("012"), tuple("345"), ("6",)]
    assert DESK.done[-1].at_s - DESK.done[0].at_s < 1


def test_the_rest_of_a_window_does_not_wait_for_new_calls(world: World) -> None:
    call_each(world, digest, "0123456")
    with mock.patch.object(claiming, "MAX_CALLS", 3):
        DESK.before = lambda run: digest.call("ada", Note("new")) if len(DESK.begun) == 1 else None
        world.settle()
    assert DESK.texts() == [tuple("012"), tuple("345"), ("6", "new")]
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_the_calls_of_a_run_have_at_most_so_many_bytes(world: World) -> None:
    texts = [str(number) * 40_000 for number in range(5)]
    call_each(world, digest, texts)
    with mock.patch.object(claiming, "MAX_CALLS_BYTES", 100_000):
        world.settle()
    assert DESK.texts() == [tuple(texts[0:2]), tuple(texts[2:4]), (texts[4],)]


def test_a_wait_that_was_made_shorter_counts_for_calls_that_wait(world: World) -> None:
    call_each(world, digest, "0")
    with mock.patch.object(digest, "timing", Debounce(5, 50)):
        call_each(world, digest, "1")
        began_s = world.clock.time_s
        world.settle()
    assert DESK.texts() == [("0", "1")]
    assert DESK.done[0].at_s - began_s == pytest.approx(5, abs=1)


def test_a_wait_that_was_made_longer_counts_for_calls_that_wait(world: World) -> None:
    call_each(world, digest, "0")
    began_s = world.clock.time_s
    with mock.patch.object(digest, "timing", Debounce(90, 900)):
        world.settle()
    assert DESK.texts() == [("0",)]
    assert DESK.done[0].at_s - began_s == pytest.approx(90, abs=1)


def test_a_throttle_that_was_made_shorter_is_noticed_by_the_sweep(world: World) -> None:
    for text in "01":
        call_each(world, reindex, text)
        world.deliver_due()
    began_s = world.clock.time_s
    with mock.patch.object(reindex, "timing", Throttle(1)):
        world.clock.sleep(32)
        world.sweep(SWEEP)
        world.deliver_due()
    assert DESK.texts() == [("0",), ("1",)]
    assert DESK.done[1].at_s - began_s < EVERY_S


def test_calls_of_a_window_share_their_hints(world: World) -> None:
    for number in range(10):
        call_each(world, digest, [str(number)])
        world.clock.sleep(1)
    assert len(world.live_tasks("default")) == 1
    world.clock.sleep(WAIT_S - 10)
    world.deliver_due()
    assert len(world.live_tasks("default")) == 1
    world.settle()
    assert DESK.texts() == [tuple("0123456789")]


def test_a_call_at_any_moment_of_a_run_is_in_one_run(world: World) -> None:
    """The digest that reads a list, sends it, and deletes the list loses the note in between."""
    for at in range(100):
        DESK.__init__(clock=world.clock)  # type: ignore[misc]
        call_each(world, digest, "a")
        world.clock.sleep(WAIT_S + 1)
        world.plan.reset(MEANWHILE, at)
        world.plan.on_fire = lambda: apart(lambda: _visit(world))
        with world.plan.watched():
            world.deliver_due()
        fired = bool(world.plan.fired)
        world.plan.reset()
        world.settle()
        texts = [text for texts in DESK.texts() for text in texts]
        assert sorted(texts) == (["a", "b"] if fired else ["a"]), at
        assert LaneTask.query().fetch() == LaneState.query().fetch() == []
        if not fired:
            break
    assert at > 5


def _visit(world: World) -> None:
    with world.clients.context():
        digest.call(world.clients, "ada", Note("b"))


def _deliver_during_a_run(world: World) -> None:
    """Let a call come during a run, and its hint, too."""

    def act(run: MailRun) -> None:
        if len(DESK.begun) == 1:
            sync.call("ada", Note("1"))
            apart(world.deliver_due)

    DESK.before = act
    call_each(world, sync, "0")
    world.settle()


def test_a_hint_that_comes_during_a_run_is_made_good_by_its_end(world: World) -> None:
    _deliver_during_a_run(world)
    assert DESK.texts() == [("0",), ("1",)]


def test_that_test_bites(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that does not look for the next window leaves its calls to the sweep."""
    monkeypatch.setattr(running, "_continue", lambda *args: None)
    _deliver_during_a_run(world)
    assert DESK.texts() == [("0",)]


# Bad input


def test_bad_calls_are_refused_and_nothing_waits(world: World) -> None:
    refused: list[tuple[Any, Any, type[Exception]]] = [
        ("", Note("0"), BadLaneError),
        ("x" * 300, Note("0"), BadLaneError),
        ("ada", "no note", BadArgumentsError),
        ("ada", Note(5), BadArgumentsError),  # type: ignore[arg-type]
        ("ada", Note("x" * 100_000), TooLargeError),
    ]
    for key, args, error in refused:
        for lane in (digest, reindex, sync, once):
            with pytest.raises(error):
                lane.call(world.clients, key, args)
    with pytest.raises(UnknownTaskError):
        debounced("test-unregistered", wait_s=1)(_work).call(world.clients, "ada", Note("0"))
    with pytest.raises(TypeError, match=r"\.call"):
        digest("ada")
    assert LaneTask.query().fetch() == []


def _work(person: str, calls: Sequence[Call[Note]]) -> None: ...


@dataclass
class Other:
    """Arguments without a call."""


def _no_calls(person: str, calls: Sequence[Note]) -> None: ...
def _no_key(calls: Sequence[Call[Note]]) -> None: ...
def _number(person: int, calls: Sequence[Call[Note]]) -> None: ...
def _text(person: str, calls: Sequence[Call[str]]) -> None: ...
async def _async(person: str, calls: Sequence[Call[Note]]) -> None: ...


@pytest.mark.parametrize("function", [_no_calls, _no_key, _number, _text, _async])
def test_a_function_of_another_form_is_refused_and_told_the_form(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(TypeError, match=r"def digest\(user: str, calls: Sequence"):
        debounced("test-bad", wait_s=1)(function)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: debounced("test-bad", wait_s=0),
        lambda: debounced("test-bad", wait_s=30, max_s=10),
        lambda: debounced("test-bad", wait_s=float("nan")),
        lambda: debounced("test-bad", wait_s=10**9),
        lambda: throttled("test-bad", every_s=-1),
        lambda: unique("Bad name", while_running=True),
        lambda: unique("test-bad", while_running=True, max_attempts=0),
    ],
)
def test_bad_declarations_are_refused(declare: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        declare()(_work)


def test_a_declaration_that_leaves_no_time_says_what_it_may_be() -> None:
    """A throttle has no wait to compare with."""
    with pytest.raises(ValueError, match=r"every_s must be above 0, and at most 604800, got 0"):
        throttled("test-bad", every_s=0)
    with pytest.raises(ValueError, match=r"max_s must be at least wait_s, 30, and at most 604800"):
        debounced("test-bad", wait_s=30, max_s=10)


def test_the_longest_wait_is_ten_waits_if_none_is_declared() -> None:
    digest = debounced("test-default", wait_s=3)(_work)
    assert digest.timing == Debounce(3, 30)
    daily, longest = (debounced("test-default", wait_s=days * 86_400)(_work) for days in (1, 7))
    assert daily.timing == Debounce(86_400, MAX_WAIT_S)
    assert longest.timing == Debounce(MAX_WAIT_S, MAX_WAIT_S)
    direct: Gathered[Any] = Gathered("test-default", digest.timing, _work)
    for lane in (digest, direct):
        assert (lane.max_attempts, lane.task.deadline_s, lane.queue) == (50, 600, "default")
    assert MAX_S > WAIT_S
    assert IN_ORDER.tasks == [IN_ORDER.task]
