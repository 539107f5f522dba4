"""Dead letters: a replay or a discard whose outcome is open is done once."""

from __future__ import annotations

from typing import Any, ClassVar

from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    Record,
)
from rollforward.streams.inspection.dead_letters import dead_letters, discard, replay
from rollforward.streams.storage.remote_calls import (
    Commit,
    OutcomeUnknownError,
)
from tests.rollforward.streams.simulator.driver import Came, Desk


def test_a_replay_whose_reply_is_lost_is_done_once_and_says_so() -> None:
    """B: it finds that the dead letter is gone, and by whom."""
    desk, name = dead_desk()
    commit, replies = desk.simulation.acts[Commit], [OutcomeUnknownError]

    def lossy(call: Commit) -> Any:
        versions = commit(call)
        if replies:
            raise replies.pop()
        return versions

    desk.simulation.acts[Commit] = lossy
    assert desk.do(replay(desk.environment, name))
    desk.simulation.acts[Commit] = commit
    desk.simulation.sweeps = False
    Picky.is_fixed = True
    desk.run()

    assert not desk.do(replay(desk.environment, name))
    assert desk.state("picky", "a") == {"ids": 1}


def test_a_refused_discard_is_made_again() -> None:
    """B: what it returns is true of the dead letter."""
    desk, name = dead_desk()
    commit, replies = desk.simulation.acts[Commit], [OutcomeUnknownError]

    def refusing(call: Commit) -> Any:
        if replies:
            raise replies.pop()
        return commit(call)

    desk.simulation.acts[Commit] = refusing
    assert desk.do(discard(desk.environment, name))
    assert desk.do(dead_letters(desk.environment, 9)) == []


def test_a_record_without_a_key_that_was_pushed_twice_is_replayed_as_one() -> None:
    """B, G7: it is two dead letters, and keeps its id until it is accepted."""
    desk = Desk(Pipeline("picky", Picky, intervals=1))
    Picky.is_fixed = False
    for _ in range(2):
        desk.push(Came("1", "", 1))
    letters = desk.do(dead_letters(desk.environment, 9))
    Picky.is_fixed = True
    for letter in letters:
        assert desk.do(replay(desk.environment, letter.id))
    desk.run()

    assert len(letters) == 2
    assert desk.state("picky", "none") == {"ids": 1}


class Picky(Computation):
    """Takes nothing before it is fixed."""

    inputs: ClassVar = {"in": lambda value: value["k"] or ("none" if Picky.is_fixed else "")}
    max_attempts = 1
    is_fixed = False

    def record(self, ctx: Context, record: Record) -> None:
        if not self.is_fixed:
            raise ValueError("poison")
        ctx.state.counter("ids").add(1)


def dead_desk() -> tuple[Desk, str]:
    """Return a desk with one dead record, and what that is called."""
    desk = Desk(Pipeline("picky", Picky, intervals=1))
    Picky.is_fixed = False
    desk.push(Came("1", "a", 1))
    desk.run()
    [letter] = desk.do(dead_letters(desk.environment, 9))
    return desk, letter.id
