"""Real processes, killed for real: every square is painted, and the quilt is finished once."""

from __future__ import annotations

import pytest

from models.batches import COMPLETED, BatchState
from models.demos.quilt import Quilt, QuiltSquare
from tests.stack import Stack, running_stack, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

SQUARES = 64
KILL_AT = (4, 20, 40)  # Of the squares.


def squares(stack: Stack) -> list[QuiltSquare]:
    with stack.context():
        found: list[QuiltSquare] = QuiltSquare.query().fetch()
        return found


def quilt(stack: Stack) -> Quilt:
    with stack.context():
        return Quilt.query().get()


def test_a_quilt_is_finished_while_workers_are_killed() -> None:
    """F1, F3: three workers die over it; no square is blank, and its batch has one generation."""
    with running_stack() as stack:
        chosen = {"size": "8", "palette": "dusk", "pattern": "waves", "pace": "watch"}
        page = f"{stack.app}/quilt"
        stack.post(page, page=page, **chosen).raise_for_status()
        for least in KILL_AT:
            until(lambda least=least: len(squares(stack)) >= least, 60, 0.02)  # type: ignore[misc]
            assert quilt(stack).finished is None, "it was over before a worker was killed"
            stack.control("/api/v1/workers/kill", {})
        until(lambda: quilt(stack).finished is not None, 120)

        found = quilt(stack)
        assert len(squares(stack)) == SQUARES
        assert (found.outcome, found.completion) == ("succeeded", f"quilt:{found.key.id()}:1")
        with stack.context():
            [batch] = BatchState.query().fetch()
        assert (batch.state, batch.done, batch.failed, batch.cancelled) == (
            COMPLETED,
            SQUARES,
            0,
            0,
        )
