"""Rows of tasks in a list: short name, arguments, run, and delay."""

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rollforward.local.cloudtasks.delivery.outgoing import OutgoingRequest
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.server import views
from rollforward.local.cloudtasks.store.records import TaskRecord
from rollforward.local.console.fault_words import FAULTS

MAX_ARGUMENTS_CHARS = 140
_MAX_VALUE_CHARS = 40
_MAX_RUN_ID_CHARS = 500
_PREFIX = "/tasks/"
_STATUS = re.compile(r"^[A-Z_]+\(\d+\): ")
# A task that is due and has not begun within this long is late; before, it is only on its way.
_PUNCTUAL_S = 1.0
_WAITING = ("scheduled", "queued", "retrying")


@dataclass(frozen=True)
class RunLink:
    """The run that a task works for, by its pattern and id."""

    pattern: str
    id: str

    @property
    def url(self) -> str:
        """The console's address of the run."""
        return f"/runs/{quote(self.pattern, safe='')}/{quote(self.id, safe='')}"

    @property
    def short(self) -> str:
        """Enough of the id to tell it from others.

        >>> RunLink("continuations", "spring").short, RunLink("p", "0123456789abcdef").short
        ('spring', '01234567…')
        """
        return self.id if len(self.id) <= 12 else f"{self.id[:8]}…"


@dataclass(frozen=True)
class TaskSummary:
    """A task in few words.

    Attributes:
        group: The beginning of its path, "" for nothing.
        name: The last part of its path.
        arguments: Its body in one line.
        run: The run that it works for, if its arguments name one.
    """

    group: str
    name: str
    arguments: str
    run: RunLink | None


def summary_of(path: str, body: bytes) -> TaskSummary:
    """Return a task in few words.

    >>> summary_of("/tasks/continuations/mail", b'{"run_id": "r7", "chain": 2, "after": ""}')
    ... # doctest: +NORMALIZE_WHITESPACE
    TaskSummary(group='continuations/', name='mail', arguments='chain 2',
              run=RunLink(pattern='continuations', id='r7'))
    >>> summary_of("/tasks/lanes/by-user", b'{"lane_id": "by-user|ada"}').run
    RunLink(pattern='lanes', id='by-user|ada')
    >>> summary_of("/", b"\\xff")
    TaskSummary(group='', name='/', arguments='1 B of binary data', run=None)
    """
    plain = path.partition("?")[0].removeprefix(_PREFIX)
    group, slash, name = plain.rstrip("/").rpartition("/")
    fields = _fields(body)
    run = _run(group.partition("/")[0], fields)
    return TaskSummary(
        group=group + slash if name else "",
        name=name or path,
        arguments=_arguments(body, fields, without=_id_field(group) if run else ""),
        run=run,
    )


def row_of(engine: Engine, task: TaskRecord) -> dict[str, Any]:
    """Return a task as the list shows it; adds `words`, `duration_ms`, `failure`, `overdue_s`."""
    shown = views.task_json(engine, task)
    return shown | {
        "words": summary_of(task.path, views.body_of(task)),
        "duration_ms": engine.history.last_duration_ms(task),
        "failure": failure_of(engine.history.last_fault(task), shown["last_error"]),
        "overdue_s": overdue_s(shown, engine.clock.now()),
    }


def failure_of(fault: str, error: str) -> str:
    """Return in words why an attempt failed: by the name of a fault, or without a gRPC code.

    >>> failure_of("lose_response", "UNAVAILABLE(14): no response")
    'Injected fault: Lost responses'
    >>> failure_of("", "INTERNAL(13): HTTP status code 500"), failure_of("", "sold out")
    ('HTTP status code 500', 'sold out')
    """
    if fault:
        return f"Injected fault: {FAULTS[fault].name}"
    return _STATUS.sub("", error)


def overdue_s(task: dict[str, Any], now_s: float) -> float:
    """Return for how long a task should have begun, 0 if it need not have."""
    late_s = now_s - task["schedule_at"] if task["state"] in _WAITING else 0.0
    return late_s if late_s > _PUNCTUAL_S else 0.0


def as_curl(request: OutgoingRequest) -> str:
    """Return a command that sends a request to its handler, past the queue.

    >>> print(as_curl(OutgoingRequest("POST", "http://x/t", {"A": "b"}, b'{"n": 1}')))
    curl -X POST http://x/t \\
      -H 'A: b' \\
      --data-binary '{"n": 1}'
    """
    parts = [f"curl -X {request.method} {shlex.quote(request.url)}"]
    parts += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in request.headers.items()]
    if request.body:
        try:
            parts.append(f"--data-binary {shlex.quote(_plain(request.body))}")
        except ValueError:
            octal = "".join(f"\\{byte:03o}" for byte in request.body)
            parts.append("--data-binary @-")
            return f"printf '{octal}' | " + " \\\n  ".join(parts)
    return " \\\n  ".join(parts)


def _plain(body: bytes) -> str:
    """Return a body as text that a shell can hold and curl sends as it is.

    Raises:
        ValueError: there is none.
    """
    text = body.decode()
    if "\x00" in text or text.startswith("@"):
        raise ValueError("not for an argument of curl")
    return text


def _fields(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _run(pattern: str, fields: dict[str, Any] | None) -> RunLink | None:
    run_id = (fields or {}).get(_id_field(pattern))
    if not pattern or not isinstance(run_id, str) or not 0 < len(run_id) <= _MAX_RUN_ID_CHARS:
        return None
    return RunLink(pattern, run_id)


def _id_field(group: str) -> str:
    """Return the argument that names the run of a task; a hint of a lane names the lane's key."""
    return "lane_id" if group.partition("/")[0] == "lanes" else "run_id"


def _arguments(body: bytes, fields: dict[str, Any] | None, *, without: str) -> str:
    if fields is not None:
        shown = [f"{name} {_value(value)}" for name, value in fields.items() if name != without]
        return _truncate(" · ".join(argument for argument in shown if not argument.endswith(" ")))
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"{len(body)} B of binary data"
    return _truncate(" ".join(text.split()))


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + "…"


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_ARGUMENTS_CHARS else text[: MAX_ARGUMENTS_CHARS - 1] + "…"
