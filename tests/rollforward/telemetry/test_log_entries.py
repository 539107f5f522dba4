"""Log entries of a deployed app: one line of JSON a record, bounded, whole, without secrets."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest

from rollforward.telemetry import TaskContext, Trace, in_run, in_task, in_trace
from rollforward.telemetry.log_entries import ERROR_EVENT, MAX_ENTRY_BYTES, truncated
from tests.rollforward.telemetry.records import FORMATTER, SECRET, entry_of, line_of, raised

pytestmark = pytest.mark.fast

LABELS = "logging.googleapis.com/labels"
TASK = TaskContext("t1", "orders", "/tasks/ship", 3)


class Broken:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__


class BrokenError(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("level", "severity"),
    [
        *((logging.DEBUG, "DEBUG"), (logging.INFO, "INFO"), (logging.WARNING, "WARNING")),
        *((logging.ERROR, "ERROR"), (logging.CRITICAL, "CRITICAL"), (25, "INFO"), (5, "DEBUG")),
    ],
)
def test_a_level_is_a_severity(level: int, severity: str) -> None:
    """Alerts are written for severities."""
    assert entry_of(level=level)["severity"] == severity


def test_an_entry_says_what_when_and_where() -> None:
    """As Cloud Logging reads it."""
    entry = entry_of("shipped %s to %s", 7, "Kyōto", party="p1")

    assert entry["message"] == "shipped 7 to Kyōto"
    assert entry["time"].endswith("Z")
    assert (entry["logger"], entry["party"]) == ("shop.orders", "p1")
    assert entry["logging.googleapis.com/sourceLocation"] == {
        "file": "/srv/shop/orders.py",
        "line": "12",
        "function": "ship",
    }
    assert LABELS not in entry
    assert "@type" not in entry


def test_an_entry_of_a_task_has_its_labels() -> None:
    """Whatever logs inside of it, and nothing that logs outside of it."""
    with in_task(TASK), in_run("run-7"):
        inside = entry_of("x")

    assert inside[LABELS] == {
        **{"task": "t1", "queue": "orders", "path": "/tasks/ship", "attempt": "3"},
        "run": "run-7",
    }
    assert LABELS not in entry_of("x")


def test_an_entry_is_grouped_under_its_request() -> None:
    """By trace and span, in the app's project."""
    with in_trace(Trace("0af7651916cd43dd8448eb211c80319c", "000000000000004a", is_sampled=True)):
        entry = entry_of("x")

    assert entry["logging.googleapis.com/trace"] == (
        "projects/my-project/traces/0af7651916cd43dd8448eb211c80319c"
    )
    assert entry["logging.googleapis.com/spanId"] == "000000000000004a"
    assert entry["logging.googleapis.com/trace_sampled"] is True


@pytest.mark.parametrize("level", [logging.ERROR, logging.CRITICAL])
def test_a_traceback_is_one_entry_that_error_reporting_groups(level: int) -> None:
    """The stack as Python prints it, and the class of the error as a label."""
    entry = entry_of("it failed", level=level, error=raised(KeyError("party")))

    assert entry["@type"] == ERROR_EVENT
    assert entry["serviceContext"] == {"service": "shop", "version": "v7"}
    assert entry["stack_trace"].startswith("Traceback (most recent call last):\n")
    assert entry["stack_trace"].endswith("KeyError: 'party'\n")
    assert entry[LABELS]["error_class"] == "KeyError"


def test_an_error_without_a_traceback_is_grouped_by_its_place() -> None:
    """Error Reporting takes no entry that has neither."""
    entry = entry_of("dead-lettered", level=logging.ERROR, error_class="ValueError")

    assert entry["context"]["reportLocation"]["functionName"] == "ship"
    assert entry[LABELS] == {"error_class": "ValueError"}
    assert "error_class" not in entry


HUGE = "x" * 5_000_000
EMOJIS = "\U0001f600" * 100_000


@pytest.mark.parametrize(
    "text", [HUGE, EMOJIS, "\n" * 1_000_000, "\ud83d" * 100_000, "\0" * 99_999]
)
def test_no_entry_is_larger_than_the_service_takes(text: str) -> None:
    """Of everything the beginning and the end are kept: frames, and the error's own words."""
    error = raised(ValueError(text + "the end"))
    with in_task(TASK), in_run(text):
        line = line_of(text, level=logging.ERROR, error=error, **{f"f{n}": text for n in range(99)})
        entry = entry_of(text, level=logging.ERROR, error=error)

    assert len(line) <= MAX_ENTRY_BYTES
    assert "records.py" in entry["stack_trace"]
    assert entry["stack_trace"].endswith("the end\n")
    assert "left out" in entry["message"]


def test_extras_that_are_too_much_together_are_named() -> None:
    """The entry itself stays whole."""
    entry = entry_of("x" * 10**6, error=raised(ValueError("y" * 10**6)), level=logging.ERROR,
                     **{f"f{n}": "z" * 3_900 for n in range(40)})  # fmt: skip

    assert entry["left_out"].startswith("f0, f1")
    assert "f0" not in entry


LOOP: list[Any] = []
LOOP.append(LOOP)
SHARED: dict[Any, Any] = {1: "one", None: {"deep": {"deeper": {"deepest": {"end": 1}}}}}


@pytest.mark.parametrize(
    "value",
    [
        *(object(), Broken(), {Broken(): Broken()}, LOOP, SHARED, {1, 2}, b"\xff", math.nan),
        *(math.inf, 10**5_000, 2**70, range(3), Exception("x"), {"a": [math.nan]}, lambda: 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_extra_can_be_logged(value: Any) -> None:
    """What JSON has no form for becomes a text; no call of a logger fails."""
    entry = entry_of("x", value=value)

    assert "value" in entry
    assert entry["message"] == "x"


def test_plain_extras_stay_what_they_are() -> None:
    """Filters compare numbers as numbers."""
    extras = {"count": 3, "share": 0.5, "is_new": True, "none": None, "names": ["a", "b"]}

    assert {key: entry_of("x", **extras)[key] for key in extras} == extras


def test_extras_cannot_shape_the_entry() -> None:
    """A field of the service's own gets another name."""
    forged = {"severity": "DEBUG", "stack_trace": "none", "logging.googleapis.com/trace": "mine"}
    entry = entry_of("x", level=logging.ERROR, **forged)

    assert entry["severity"] == "ERROR"
    assert "stack_trace" not in entry
    assert "logging.googleapis.com/trace" not in entry
    assert (entry["severity_"], entry["stack_trace_"]) == ("DEBUG", "none")


def test_half_a_character_is_spelled_out() -> None:
    """JavaScript cuts emojis in two, and UTF-8 has no form for that."""
    entry = entry_of("a guest called \ud83d", guest="\udc80")

    assert entry["message"] == "a guest called \\ud83d"
    assert entry["guest"] == "\\udc80"


@pytest.mark.parametrize(
    ("message", "args"), [("%d of them", ("no number",)), ("%s", (Broken(),)), ("%s %s", ("one",))]
)
def test_a_call_whose_arguments_do_not_fit_is_logged(message: str, args: tuple[Any, ...]) -> None:
    """A mistake in a log call loses no entry."""
    assert entry_of(message, *args)["message"]


def test_an_error_that_cannot_be_shown_is_logged() -> None:
    """Its class is known, whatever its text does."""
    entry = entry_of("x", level=logging.ERROR, error=raised(BrokenError()))

    assert entry[LABELS]["error_class"] == "BrokenError"
    assert "BrokenError" in entry["stack_trace"]


@pytest.mark.parametrize("name", ["error_class", "threadName", "name", "pathname", "funcName"])
def test_a_field_of_its_own_that_has_no_text_loses_no_entry(name: str) -> None:
    """As an error given as its class, or a record that a factory makes."""
    record = logging.LogRecord("shop", logging.INFO, "/srv/shop.py", 1, "x", (), None)
    setattr(record, name, Broken())

    assert json.loads(FORMATTER.format(record))["message"] == "x"


def test_a_field_whose_name_is_no_text_loses_no_entry() -> None:
    """`extra={404: "not found"}`: logging takes any dict."""
    record = logging.LogRecord("shop", logging.INFO, "/srv/shop.py", 1, "x", (), None)
    vars(record)[404] = "not found"  # type: ignore[index]

    entry = json.loads(FORMATTER.format(record))

    assert (entry["message"], entry["404"]) == ("x", "not found")


def test_no_entry_holds_a_secret() -> None:
    """The app's own keys, bearer tokens, and fields that are called so."""
    token = "Bearer eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmF0dXJl"
    line = line_of(
        f"sent {token} with {SECRET}",
        level=logging.ERROR,
        error=raised(ValueError(f"refused {token}, key {SECRET}")),
        Authorization=token,
        smtp_password="hunter2hunter2",
        headers={"Cookie": "session=abcdef", "Accept": "text/html"},
        url=f"https://shop.example/?key={SECRET}",
    )

    for secret in (SECRET, "eyJhbGciOi", "hunter2", "abcdef"):
        assert secret not in line
    assert "text/html" in line
    assert line.count("[redacted]") >= 6


def test_a_short_text_is_not_touched() -> None:
    """Only what is too long is cut."""
    assert truncated("short", 100) == "short"
    assert len(truncated("\U0001f600" * 100, 100)) < 30
