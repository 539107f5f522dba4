"""Acting on each of many: what fails stops none of the others, and is not lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.runtime.run_all import run_all

pytestmark = pytest.mark.fast

AWAY = rpc_errors.ServiceUnavailable("away")
BUG = KeyError("a bug")


def acting(*ends: Exception | int) -> list[tuple[str, Callable[[], int]]]:
    """Return actions that return a number, or raise."""

    def act(end: Exception | int) -> int:
        if isinstance(end, Exception):
            raise end
        return end

    return [(f"{i} failed", lambda end=end: act(end)) for i, end in enumerate(ends)]  # type: ignore[misc]


def test_one_that_fails_stops_none_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    """All are tried; errors are logged, each by its own words, and collected."""
    results = run_all(acting(1, BUG, 2, AWAY, 3))

    assert (results.returned, results.errors, results.attempted) == ([1, 2, 3], [BUG, AWAY], 5)
    assert caplog.messages == ["1 failed", f"3 failed: {AWAY}"]
    assert "a bug" in caplog.text
    assert not results.is_cut_short


def test_an_outage_is_one_line_whichever_error_a_pattern_makes_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sweep of a pipeline wrote a hundred lines of traceback for each refused commit."""
    wrapped = RuntimeError("a commit is in doubt")
    wrapped.__cause__ = LookupError("no answer")
    wrapped.__cause__.__cause__ = AWAY

    results = run_all(acting(wrapped, wrapped, 1), max_unavailable=2)

    assert results.is_cut_short
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert caplog.messages[0] == "0 failed: a commit is in doubt"
    assert "Traceback" not in caplog.text


def test_the_first_error_of_a_kind_rises() -> None:
    """By default of any kind; without one nothing rises."""
    results = run_all(acting(BUG, AWAY))

    with pytest.raises(KeyError):
        results.raise_first()
    with pytest.raises(rpc_errors.ServiceUnavailable):
        results.raise_first(rpc_errors.GoogleAPIError)
    results.raise_first(ValueError)
    run_all(acting(1)).raise_first()


@pytest.mark.parametrize(
    ("ends", "tried", "is_cut_short"),
    [
        ((AWAY, AWAY, 1), 2, True),
        ((AWAY, 1, AWAY, 1), 4, False),
        ((AWAY, BUG, AWAY, 1), 4, False),
        ((BUG, BUG, BUG), 3, False),
    ],
)
def test_a_service_that_does_not_answer_ends_it(
    ends: tuple[Exception | int, ...], tried: int, is_cut_short: bool
) -> None:
    """Transient errors in a row are the service's, and more of them are of no use."""
    results = run_all(acting(*ends), max_unavailable=2)

    assert (results.attempted, results.is_cut_short) == (tried, is_cut_short)
