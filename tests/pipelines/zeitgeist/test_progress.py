"""The alerts of a playback: which event of the sample or of a visitor each of them reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.zeitgeist.detector import DIP, SPIKE, Alert, Kind
from pipelines.zeitgeist.playbacks import Change, Part, Playback, sample_parts
from pipelines.zeitgeist.progress import QueryAlert
from pipelines.zeitgeist.sample import EVENTS, FIRST_DAY, Event
from pipelines.zeitgeist.series import DAY_MS, HOUR_MS

pytestmark = pytest.mark.fast

SHIFT = 7 * DAY_MS
BEGIN = FIRST_DAY * DAY_MS + SHIFT
PARTS = {part.name: part for part in sample_parts("a" * 32)}
RUMOUR = Change(PARTS["weather"].query, BEGIN, BEGIN + HOUR_MS, 10.0)
PLAYBACK = Playback(
    *("a" * 32, "the sample", tuple(PARTS.values()), SHIFT, BEGIN, BEGIN + DAY_MS, 1, 0, 0, {}),
    changes=(RUMOUR,),
)


def alert(part: Part, kind: Kind, start: int) -> QueryAlert:
    """An alert of a query."""
    return QueryAlert(part, Alert(kind, start, start, 1.0, 2.0, 3.0, 4.0))


@pytest.mark.parametrize("event", EVENTS)
def test_an_alert_is_planted_within_an_hour_of_its_event_and_only_of_its_kind(
    event: Event,
) -> None:
    """A dip after a planted spike is a false alert."""
    other: Kind = DIP if event.kind == SPIKE else SPIKE
    start = BEGIN + int(event.begin * HOUR_MS)
    end = BEGIN + int(event.end * HOUR_MS) + HOUR_MS
    part = PARTS[event.query]

    assert alert(part, event.kind, start).cause_in(PLAYBACK) == "planted"
    assert alert(part, event.kind, end).cause_in(PLAYBACK) == "false alert"
    assert alert(part, other, start).cause_in(PLAYBACK) == "false alert"


def test_a_rumour_of_a_visitor_and_an_upload_are_no_false_alerts() -> None:
    """The one is caused on the page, and of the other nobody knows what is right."""
    weather = PARTS["weather"]

    assert alert(weather, SPIKE, BEGIN).cause_in(PLAYBACK) == "caused here"
    assert alert(weather, DIP, BEGIN).cause_in(PLAYBACK) == "false alert"
    assert alert(replace(weather, upload="u"), SPIKE, BEGIN).cause_in(PLAYBACK) is None
