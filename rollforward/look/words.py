"""Formatting for people: times, sizes, states, bodies."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

_SHOWN_BODY_BYTES = 64 * 1024
# Indented, a body of deep lists is hundreds of times as long: the square of its depth.
_SHOWN_JSON_CHARS = 1024 * 1024
_INDENTED = json.JSONEncoder(ensure_ascii=False, indent=2)
_HEX_ROW_BYTES = 16
_SHOWN_TOKEN = 19
# A timer of a stream may be due later than any `datetime` is, in each zone.
_LAST_MOMENT = datetime(9999, 12, 30, tzinfo=UTC).timestamp()
_AGES = ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600), (float("inf"), "d", 86400))


@dataclass(frozen=True)
class StateLabel:
    """A state as it is shown everywhere: icon, word and a name for its colour."""

    icon: str
    word: str
    colour: str


STATES = {
    "scheduled": StateLabel("◷", "Scheduled", "scheduled"),
    "queued": StateLabel("○", "Queued", "queued"),
    "running": StateLabel("◔", "Running", "running"),
    "retrying": StateLabel("↻", "Retrying", "retrying"),
    "done": StateLabel("✓", "Done", "done"),
    "failed": StateLabel("✕", "Failed", "failed"),
    "deleted": StateLabel("⊘", "Deleted", "cancelled"),
}
RUN_STATES = {
    "running": STATES["running"],
    "failed": StateLabel("✕", "Failed: needs a person", "failed"),
    "finished": StateLabel("✓", "Finished", "done"),
    "cancelled": StateLabel("⊘", "Cancelled", "cancelled"),
    "unreadable": StateLabel("?", "Cannot be read", "failed"),
}
OUTCOMES = {
    "done": STATES["done"],
    "skipped": StateLabel("⊘", "Skipped", "cancelled"),
    "failed": STATES["failed"],
    "retrying": STATES["retrying"],
    "waiting": StateLabel("○", "Waiting", "queued"),
}
SERVICE_STATES = {
    "running": StateLabel("✓", "Running", "done"),
    "stopped": StateLabel("✕", "Stopped", "failed"),
    "silent": StateLabel("✕", "Does not answer", "failed"),
    "external": StateLabel("↗", "External", "queued"),
    "off": StateLabel("–", "Off", "cancelled"),
}


def age(seconds: float) -> str:
    """Return a span of time in one unit.

    >>> age(0.4), age(59), age(3700), age(200_000)
    ('0 s', '59 s', '1 h', '2 d')
    """
    for below, unit, size in _AGES:
        if abs(seconds) < below:
            return f"{int(abs(seconds) // size)} {unit}"
    raise ValueError(f"not a span of time: {seconds}")


def relative(moment: float, now_s: float) -> str:
    """Return when, seen from now.

    >>> relative(100, 165), relative(165, 100), relative(100, 100.5)
    ('1 min ago', 'in 1 min', 'now')
    """
    if abs(now_s - moment) < 1:
        return "now"
    return f"{age(now_s - moment)} ago" if now_s > moment else f"in {age(moment - now_s)}"


def exact(moment: float) -> str:
    """Return the exact local time of seconds since the epoch."""
    return datetime.fromtimestamp(moment, UTC).astimezone().isoformat(" ", "milliseconds")


def stamp(moment: float) -> str:
    """Return a short local date and time."""
    return datetime.fromtimestamp(moment, UTC).astimezone().strftime("%a %-d %b %H:%M")


def when(moment: float | None, now_s: float) -> Markup:
    """Return a <time> element: relative to read, exact on hover and for readers."""
    if moment is None:
        return Markup("–")
    moment = min(moment, _LAST_MOMENT)
    iso = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    parts = (escape(iso), escape(exact(moment)), escape(relative(moment, now_s)))
    return Markup('<time datetime="{}" title="{}">{}</time>').format(*parts)


def duration(ms: float | None) -> str:
    """Return milliseconds, or seconds if there are many.

    >>> duration(3.14159), duration(250.4), duration(61_000)
    ('3.1 ms', '250 ms', '61.0 s')
    """
    if ms is None:
        return "–"
    if ms < 10:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if ms < 10_000 else f"{ms / 1000:.1f} s"


def late(moment: float, now_s: float) -> Markup:
    """Return for how long something has been due."""
    iso = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    parts = (escape(iso), escape(exact(moment)), escape(age(now_s - moment)))
    return Markup('<time datetime="{}" title="{}" data-as="age">{}</time>').format(*parts)


def span(seconds: float | None) -> str:
    """Return seconds as people say them.

    >>> span(0.034), span(7.21), span(75), span(7500), span(100_000), span(None)
    ('34 ms', '7.2 s', '1 min 15 s', '2 h 5 min', '1 d 3 h', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    total_s = int(seconds)
    if total_s < 3600:
        return f"{total_s // 60} min {total_s % 60} s"
    if total_s < 86_400:
        return f"{total_s // 3600} h {total_s % 3600 // 60} min"
    return f"{total_s // 86_400} d {total_s % 86_400 // 3600} h"


def clock(moment: float) -> Markup:
    """Return a <time> element with the local time of day, to the millisecond."""
    at = datetime.fromtimestamp(moment, UTC)
    local = at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    parts = (escape(at.isoformat(timespec="milliseconds")), escape(exact(moment)), local)
    return Markup('<time class="clock" datetime="{}" title="{}">{}</time>').format(*parts)


def clock_text(moment: float) -> str:
    """Return the local time of day, as an axis has it."""
    return datetime.fromtimestamp(moment, UTC).astimezone().strftime("%H:%M:%S").removesuffix(":00")


def size(count: int) -> str:
    """Return a number of bytes.

    >>> size(999), size(20_480)
    ('999 B', '20.0 KiB')
    """
    return f"{count} B" if count < 1024 else f"{count / 1024:.1f} KiB"


def number(value: float, digits: int = 0) -> str:
    """Return a number with thousands set apart by a thin blank, as the demo's pages have it.

    >>> number(12345), number(1.5, 2)
    ('12\\u202f345', '1.50')
    """
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> pluralize(1, "task"), pluralize(1200, "task")
    ('1 task', '1\\u202f200 tasks')
    """
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"


def header_value(name: str, value: str) -> str:
    """Return a header's value; a token is long and says nothing to people.

    >>> header_value("Authorization", "Bearer " + "x" * 700)
    'Bearer xxxxxxxxxxxx… (707 characters)'
    """
    if name.lower() != "authorization" or len(value) < _SHOWN_TOKEN:
        return value
    return f"{value[:_SHOWN_TOKEN]}… ({len(value)} characters)"


@dataclass(frozen=True)
class Body:
    """Bytes as people read them.

    Attributes:
        form: "JSON", "text", "hex" or "empty".
        text: The form that is shown.
        cut: Whether there is more than is shown.
    """

    form: str
    text: str
    cut: bool
    size: str


def body(raw: bytes) -> Body:
    """Return the body in the most readable form that it has.

    >>> body(b'{"a": "\\\\u5b57"}').form, body("字".encode()).form, body(b"\\xff\\x00").text[:20]
    ('JSON', 'text', '00000000  ff 00     ')
    """
    if not raw:
        return Body("empty", "", False, size(0))
    shown, cut = raw[:_SHOWN_BODY_BYTES], len(raw) > _SHOWN_BODY_BYTES
    try:
        # A cut may fall inside a character: that is no reason to show hex.
        text = shown.decode("utf-8", "ignore" if cut else "strict")
    except UnicodeDecodeError:
        return Body("hex", _hex(shown), cut, size(len(raw)))
    if "\x00" in text:
        return Body("hex", _hex(shown), cut, size(len(raw)))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Body("text", text, cut, size(len(raw)))
    return Body("JSON", _indented(value) or text, cut, size(len(raw)))


def _indented(value: object) -> str:
    """Return JSON in lines; "": they are too long to be shown."""
    parts, chars = [], 0
    for part in _INDENTED.iterencode(value):
        parts.append(part)
        chars += len(part)
        if chars > _SHOWN_JSON_CHARS:
            return ""
    return "".join(parts)


def _hex(raw: bytes) -> str:
    rows = []
    for start in range(0, len(raw), _HEX_ROW_BYTES):
        row = raw[start : start + _HEX_ROW_BYTES]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{_HEX_ROW_BYTES * 3 - 1}}  {plain}")
    return "\n".join(rows)


def sparkline(values: list[float], width: int = 160, height: int = 36) -> str:
    """Return the points of an SVG polyline, the newest on the right.

    >>> sparkline([0, 2, 1], 100, 10)
    '0.0,9.0 50.0,1.0 100.0,5.0'
    """
    if len(values) < 2:
        return ""
    top, inner, step = max(max(values), 1), height - 2, width / (len(values) - 1)
    points = (
        (index * step, height - 1 - value / top * inner) for index, value in enumerate(values)
    )
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
