"""Times as texts that sort."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import pytest

from rollforward.runtime.clock import Timeout, parse_time, time_text

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    "at",
    [
        datetime.datetime(1970, 1, 1),  # noqa: DTZ001  Datastore's are naive.
        datetime.datetime(2028, 2, 29, 23, 59, 59, 999_999),  # noqa: DTZ001
        datetime.datetime(9999, 12, 31, 0, 0, 0, 1),  # noqa: DTZ001
    ],
)
def test_a_time_is_what_its_text_says(at: datetime.datetime) -> None:
    """To the microsecond."""
    assert parse_time(time_text(at)) == at


@pytest.mark.parametrize(
    "text",
    [
        "",
        "20300501T12000000000",
        "20300501T1200000000000",
        "20300501 120000000000",
        "20301301T120000000000",
        "20300501T250000000000",
        "20300501T12000000000x",
        "2030-5-1T120000000000",
        "٢٠٣٠٠٥٠١T120000000000",
    ],
)
def test_a_text_of_another_form_is_no_time(text: str) -> None:
    """It may be of any version, or made by hand."""
    with pytest.raises(ValueError, match=r".+"):
        parse_time(text)


@dataclass
class SetClock:
    """A clock that shows what it was set to."""

    at: datetime.datetime

    def now(self) -> datetime.datetime:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += datetime.timedelta(seconds=seconds)


def test_a_time_out_ends_after_its_seconds_and_when_the_clock_is_put_back() -> None:
    """Nobody waits for the minutes by which a clock was put back."""
    clock = SetClock(datetime.datetime(2030, 5, 1, tzinfo=datetime.UTC))
    timeout = Timeout.of(clock, 2)

    assert Timeout.of(clock, 0).is_over
    for seconds, is_over in [(0, False), (1.9, False), (0.1, True), (-2, False), (-300, True)]:
        clock.sleep(seconds)
        assert timeout.is_over == is_over
