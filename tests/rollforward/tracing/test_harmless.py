"""Traces that harm nothing: of a module that is half loaded, and of errors without a text."""

from __future__ import annotations

import json
import logging
import sys
from types import ModuleType

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rollforward.telemetry import CloudLogFormatter
from rollforward.tracing import current_traceparent, has_current_span, is_on, start_span

pytestmark = pytest.mark.fast


@pytest.fixture(params=["opentelemetry.trace", "opentelemetry.context"])
def half_loaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is in `sys.modules` from the beginning of its import, with no names yet."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("opentelemetry.trace"))
    monkeypatch.setitem(sys.modules, request.param, ModuleType(request.param))


def test_a_request_has_no_span_while_another_thread_imports_the_api(half_loaded: None) -> None:
    """The request was a 500: a lazy import in one handler failed those beside it."""
    assert not is_on()
    assert not has_current_span()
    assert current_traceparent() == ""
    with start_span("GET", "SERVER") as span, start_span("call"):
        assert not span.is_recorded


def test_a_record_is_an_entry_while_another_thread_imports_the_api(half_loaded: None) -> None:
    """The entry was lost: the formatter raised."""
    record = logging.LogRecord("shop", logging.ERROR, "shop.py", 7, "lost", None, None)
    assert json.loads(CloudLogFormatter("p").format(record))["message"] == "lost"


class WordlessError(Exception):
    """Code of the app writes `__str__`, and may be wrong there."""

    def __str__(self) -> str:
        raise KeyError("order")


def test_an_error_whose_text_fails_is_raised_on_and_ends_its_span(
    exporter: InMemorySpanExporter,
) -> None:
    """The app that catches it met another one with an SDK, and the span was lost."""
    with pytest.raises(WordlessError), start_span("GET", "SERVER"):
        raise WordlessError

    [span] = exporter.get_finished_spans()
    assert (span.status.is_ok, span.status.description) == (False, "WordlessError")
