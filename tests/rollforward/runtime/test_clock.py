"""Times as texts that sort."""

from __future__ import annotations

import datetime

import pytest

from rollforward.runtime.clock import parse_time, time_text

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
