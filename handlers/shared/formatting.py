"""Numbers, times and states as words, so that all pages show them alike."""

from __future__ import annotations

import datetime
import math
import re
from typing import Any

from flask import Flask
from markupsafe import Markup

from handlers.shared import charts
from rollforward.flask.context import settings
from rollforward.flask.settings import LOCAL

# A number of an error's message that stands in no quotation.
_THOUSANDS = re.compile(r"(?<![\d'\"“])\d{1,3}(?:,\d{3})+(?![\d'\"”])")
# Icon and word of each state; the colour comes with the class of the same name.
STATES = {
    "waiting": ("○", "Waiting"),
    "running": ("◔", "Running"),
    "retrying": ("↻", "Retrying"),
    "done": ("✓", "Done"),
    "finished": ("✓", "Finished"),
    "skipped": ("–", "Skipped"),
    "failed": ("✕", "Failed"),
    "cancelled": ("⊘", "Cancelled"),
}


def register(app: Flask) -> None:
    """Add the filters to the templates."""
    app.add_template_filter(number)
    app.add_template_filter(duration)
    app.add_template_filter(about)
    app.add_template_filter(moment)
    app.add_template_filter(state_icon)
    app.add_template_filter(state_word)
    app.add_template_filter(plural)
    app.add_template_filter(about_field)
    app.add_template_filter(sentence)
    app.add_template_filter(lag_text)
    app.add_template_filter(short)
    app.context_processor(_everywhere)
    charts.register(app)


def _everywhere() -> dict[str, Any]:
    is_local = settings().platform == LOCAL
    return {
        # Whose project it is concerns those who deployed it, and not each visitor.
        "badge": "LOCAL" if is_local else "DEPLOYED",
        "project": settings().project if is_local else "",
        "is_local": is_local,
        "console_url": settings().devserver_url if is_local else None,
    }


def clean_html(html: str) -> Markup:
    """Return HTML that pipelines/blog/markdown.py has cleaned, for a template to show as it is."""
    return Markup(html)  # nosec B704  What nh3 lets through is on a list.


def number(value: float, digits: int = 0) -> str:
    """Return a number with thousands set apart by a thin blank.

    >>> number(12345)
    '12\\u202f345'
    """
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def lag_text(lag_ms: int) -> str:
    """Return how far a computation is behind, in at most six characters.

    >>> [lag_text(ms) for ms in (0, 1, 59_999, 90_000, 6_000_000, 36_000_000, 10**10)]
    ['0 s', '1 s', '60 s', '1 min', '1.7 h', '10 h', '115 d']
    """
    minutes = lag_ms / 60_000
    if minutes < 1:
        return f"{-(-lag_ms // 1000)} s"
    if minutes < 100:
        return f"{int(minutes)} min"
    hours = minutes / 60
    if hours < 100:
        return f"{hours:.{0 if hours >= 9.95 else 1}f} h"
    return f"{number(int(hours / 24))} d"


def short(count: int) -> str:
    """Return a count in at most five characters, as far as it has any meaning.

    >>> [short(count) for count in (0, 9_999, 10_000, 123_456, 12_345_678)]
    ['0', '9\\u202f999', '10k', '123k', '12M']
    """
    if count < 10_000:
        return number(count)
    return f"{count // 1000}k" if count < 1_000_000 else f"{count // 1_000_000}M"


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count and its noun.

    >>> plural(1, "guest"), plural(2000, "guest"), plural(0, "party", "parties")
    ('1 guest', '2\\u202f000 guests', '0 parties')
    """
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def about_field(message: str, label: str) -> str:
    """Return the problem of a form's field, with the label of the field.

    >>> about_field("a whole number from 1 to 9", "Seconds"), about_field("no list", "List")
    ('Seconds: a whole number from 1 to 9', 'no list')
    """
    return message if label.lower() in message.lower() else f"{label}: {message}"


def sentence(message: str) -> str:
    """Return an error's message as a sentence, with its numbers as pages show them.

    >>> sentence("at most 1,000 lines, got '2,000'")
    "At most 1\\u202f000 lines, got '2,000'."
    """
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", "\u202f"), message)
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def duration(seconds: float | None) -> str:
    """Return a length of time as people say it.

    >>> [duration(s) for s in (0.0384, 6.24, 75, 4000, None)]
    ['38 ms', '6.2 s', '1 min 15 s', '1 h 6 min', '–']
    """
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def about(seconds: float | None) -> str:
    """Return an estimated length of time, no finer than an estimate is.

    >>> [about(s) for s in (0.2, 6.24, 75, None)]
    ['1 s', '7 s', '1 min 15 s', '–']
    """
    if seconds is None or seconds >= 60:
        return duration(seconds)
    return f"{max(1, math.ceil(seconds))} s"


def moment(at: datetime.datetime) -> str:
    """Return a point in time.

    >>> moment(datetime.datetime(2030, 5, 1, 19, 30))
    '2030-05-01 19:30'
    """
    return f"{at:%Y-%m-%d %H:%M}"


def state_icon(state: str) -> str:
    """Return a state's icon."""
    return STATES[state][0]


def state_word(state: str) -> str:
    """Return a state's word."""
    return STATES[state][1]
