"""The books of a school's last list."""

from __future__ import annotations

import pytest

from handlers.grades.stage import SchoolStage
from rollforward.continuations.entities import FINISHED
from rollforward.continuations.progress import RunProgress, RunTotals
from rollforward.runtime import Cost

pytestmark = pytest.mark.fast


def stage(requested: int | None, *, expected: int, done: int, failed: int) -> SchoolStage:
    """Return the stage of a school whose list has ended."""
    totals = RunTotals(
        done=done,
        skipped=0,
        failed=failed,
        retrying=0,
        waiting=0,
        in_doubt=0,
        pages=10,
        cost=Cost(),
    )
    latest = RunProgress("list", FINISHED, expected, totals, 1.0, (), requested=requested)
    return SchoolStage(latest, waiting=0, verified=None, cells=[])


@pytest.mark.parametrize(
    ("requested", "asked", "not_attempted"),
    [(1_000, 1_000, 6), (None, 994, 0)],
    ids=["announced", "a file"],
)
def test_the_books_ask_for_what_the_list_announced(
    requested: int | None, asked: int, not_attempted: int
) -> None:
    """1 000 were announced and 994 found: six are missing. Of a file its rows are counted."""
    school = stage(requested, expected=994, done=990, failed=4)

    balance = school.balance()
    verdict = balance.verdict

    assert (balance.asked, balance.made_count, balance.refused) == (asked, 990, 4)
    assert balance.not_attempted == not_attempted
    assert verdict is not None
    assert verdict.state == ("failed" if not_attempted else "done")
