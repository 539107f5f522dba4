"""Context of the work in hand: the task that a delivery brings, and the trace of its request."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypeVar

from rollforward.telemetry.metrics import Outcome

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class TaskContext:
    """A delivery of a task.

    Attributes:
        name: The task's id; its planned waits keep the first one.
        attempt: The number of deliveries before this one.
        run: The run or batch that the task works for; "" if it names none.
    """

    name: str
    queue: str
    path: str
    attempt: int
    run: str = ""


@dataclass(frozen=True)
class Trace:
    """A place in a trace, as a request's header has it."""

    trace_id: str
    span_id: str = ""
    is_sampled: bool = False


class NoteRun(Protocol):
    """The metrics of an instance: `TaskMetrics.note`."""

    def __call__(
        self, task: str, queue: str, outcome: Outcome, *, delay_s: float | None, duration_s: float
    ) -> None: ...


# W3C Trace Context, and the header of Google's front ends: TRACE_ID/SPAN_ID;o=OPTIONS.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_CLOUD_TRACE = re.compile(r"([0-9a-fA-F]{32})(?:/([0-9]{1,20}))?(?:;o=([0-9]))?")

_task: ContextVar[TaskContext | None] = ContextVar("rollforward_task", default=None)
_note_run: ContextVar[NoteRun | None] = ContextVar("rollforward_note_run", default=None)
_trace: ContextVar[Trace | None] = ContextVar("rollforward_trace", default=None)


def current_task() -> TaskContext | None:
    """Return the task that this code runs in; None if it runs in none."""
    return _task.get()


def current_trace() -> Trace | None:
    """Return the trace of the span that runs here, or else of the request that this code answers.

    None: there is neither.
    """
    api: Any = sys.modules.get("opentelemetry.trace")
    if hasattr(api, "get_current_span"):  # Another thread may be in its import.
        span = api.get_current_span().get_span_context()
        if span.is_valid:
            return Trace(f"{span.trace_id:032x}", f"{span.span_id:016x}", span.trace_flags.sampled)
    return _trace.get()


@contextmanager
def in_task(task: TaskContext) -> Iterator[None]:
    """Name the task of the code inside."""
    token = _task.set(task)
    try:
        yield
    finally:
        _task.reset(token)


@contextmanager
def in_run(run: str) -> Iterator[None]:
    """Name the run of the code inside."""
    task = _task.get()
    token = _task.set(replace(task, run=run) if task is not None else None)
    try:
        yield
    finally:
        _task.reset(token)


@contextmanager
def in_trace(trace: Trace | None) -> Iterator[None]:
    """Name the trace of the code inside."""
    token = _trace.set(trace)
    try:
        yield
    finally:
        _trace.reset(token)


@contextmanager
def in_metrics(note: NoteRun) -> Iterator[None]:
    """Name what counts the tasks that the code inside runs."""
    token = _note_run.set(note)
    try:
        yield
    finally:
        _note_run.reset(token)


def note_run(
    path: str, queue: str, outcome: Outcome, delay_s: float | None, duration_s: float
) -> None:
    """Count a task that a delivery of another one has run, if this code runs in a delivery.

    Args:
        delay_s: From when it was due; None: unknown.
    """
    note = _note_run.get()
    if note is not None:
        note(path, queue, outcome, delay_s=delay_s, duration_s=duration_s)


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that knows the present task and trace in any thread that calls it."""
    task, trace = _task.get(), _trace.get()

    @functools.wraps(function)
    def with_context(*args: P.args, **options: P.kwargs) -> T:
        tokens = _task.set(task), _trace.set(trace)
        try:
            return function(*args, **options)
        finally:
            _task.reset(tokens[0])
            _trace.reset(tokens[1])

    return with_context


def trace_of(environ: Mapping[str, object]) -> Trace | None:
    """Return the trace that a request's headers name; None: none, or no valid one.

    >>> trace_of({"HTTP_X_CLOUD_TRACE_CONTEXT": "0af7651916cd43dd8448eb211c80319c/74;o=1"})
    Trace(trace_id='0af7651916cd43dd8448eb211c80319c', span_id='000000000000004a', is_sampled=True)
    """
    parent = _TRACEPARENT.fullmatch(str(environ.get("HTTP_TRACEPARENT", ""))[:200])
    if parent and int(parent[1], 16) and int(parent[2], 16):
        return Trace(parent[1], parent[2], bool(int(parent[3], 16) & 1))
    google = _CLOUD_TRACE.fullmatch(str(environ.get("HTTP_X_CLOUD_TRACE_CONTEXT", ""))[:200])
    if google is None or not int(google[1], 16):
        return None
    span = int(google[2] or 0)
    span_id = f"{span:016x}" if 0 < span < 2**64 else ""
    return Trace(google[1].lower(), span_id, google[3] == "1")
