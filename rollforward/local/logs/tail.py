"""The newest log records of all services, in memory: what the console's page Logs shows.

A record is a line and the following lines without a level of their own (a traceback). It has the
service that wrote it, a level, and a task if its line ends with `[task queue/name]`. Lines of a
delivery do (rollforward/flask/endpoints/delivery_log.py).
"""

import collections
import heapq
import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
SERVICES = ("app", "tasks", "cron", "datastore", "memcached", "mail", "devserver")
# Of each service, so that one that says much pushes out no other.
MAX_RECORDS = 2000
MAX_CHARS = 2_000_000
MAX_LINES = 200  # Of one record.
MAX_LINE_CHARS = 4000

_LEVEL_OF = {
    **dict.fromkeys(("DEBUG", "FINE", "FINER", "FINEST"), "DEBUG"),
    **dict.fromkeys(("INFO", "NOTICE", "DEFAULT", "CONFIG"), "INFO"),
    **dict.fromkeys(("WARNING", "WARN"), "WARNING"),
    **dict.fromkeys(("ERROR", "CRITICAL", "ALERT", "EMERGENCY", "SEVERE", "FATAL"), "ERROR"),
}
_LEVEL = re.compile(rf"(?:^|[\s\[])({'|'.join(_LEVEL_OF)})(?=[\]:\s])")
_LEVEL_CHARS = 120  # Further on in a line a level is only a word.
_TASK = re.compile(r" \[task ([\w.-]{1,100}/[\w.-]{1,500})\]$")
_TRACEBACK = "Traceback (most recent call last)"
# What is indented, or has no word: the end of what was written over several lines.
_REST = re.compile(r"\s|[\W_]*$")
_LEADING_LEVEL = re.compile(rf"^({'|'.join(_LEVEL_OF)}):? +(?=\S)")
# Between the tracebacks of an error and of its cause.
FURTHER = ("The above exception was", "During handling of the above")


def level_of(line: str) -> str | None:
    """Return the level that a line names, one of LEVELS; None if it names none.

    >>> level_of("WARNING shop: slow"), level_of('{"severity": "critical"}'), level_of("  at x")
    ('WARNING', 'ERROR', None)
    """
    if line.startswith("{"):
        try:
            severity = json.loads(line).get("severity")
        except (ValueError, AttributeError, RecursionError):
            return None
        return _LEVEL_OF.get(str(severity).upper(), "INFO") if severity else None
    match = _LEVEL.search(line[:_LEVEL_CHARS])
    return _LEVEL_OF[match.group(1)] if match else None


@dataclass
class LogRecord:
    """One log record of a service, of one line or more.

    Attributes:
        number: Grows with each record.
        task: The task, as queue/name; "" for none.
    """

    number: int
    at: float
    service: str
    level: str
    task: str
    lines: list[str] = field(default_factory=list)
    _is_in_stack: bool = False

    def takes(self, line: str) -> bool:
        """Return whether a line without a level belongs here, and is no print of its own."""
        if line.startswith(_TRACEBACK):
            self._is_in_stack = True
            return True
        if self._is_in_stack:  # Its last line names the error, and is not indented.
            self._is_in_stack = not line or line[0].isspace()
            return True
        return bool(_REST.match(line)) or line.startswith(FURTHER)

    @property
    def is_in_stack(self) -> bool:
        """Whether its last line is of a traceback that has not named its error yet."""
        return self._is_in_stack

    @property
    def text(self) -> str:
        """All its lines."""
        return "\n".join(self.lines)


@dataclass(frozen=True)
class LogFilter:
    """A filter of records; an empty field lets all pass.

    Attributes:
        level: This one and those above it.
        text: In any of its lines, ignoring case.
        before: Only records with a lower number; 0 for all.
        tasks: Only records of these; None for all.
    """

    service: str = ""
    level: str = ""
    text: str = ""
    task: str = ""
    before: int = 0
    tasks: frozenset[str] | None = None

    def matches(self, record: LogRecord) -> bool:
        """Return whether a record is to be shown."""
        return (
            (not self.before or record.number < self.before)
            and self.service in ("", record.service)
            and self.task in ("", record.task)
            and (self.tasks is None or record.task in self.tasks)
            and (not self.level or LEVELS.index(record.level) >= LEVELS.index(self.level))
            and self.text.lower() in record.text.lower()
        )


class LogTail:
    """Keeps the newest records; any thread may add to them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin without records."""
        self._clock = clock
        self._of: dict[str, _Records] = {}
        self._last_number = 0
        self._lock = threading.Lock()

    def add(self, service: str, line: str) -> None:
        """Add a line of a service: a record of its own, or more of the one before it."""
        line = line[:MAX_LINE_CHARS]
        match = _TASK.search(line)
        task, line = (match[1], line[: match.start()]) if match else ("", line)
        level = level_of(line)
        with self._lock:
            newest = self._records(service).newest
            if level is None and not task and newest is not None and newest.takes(line):
                self._records(service).append_line(newest, line)
            elif line.strip():
                shown = _LEADING_LEVEL.sub("", line, count=1) if level else line
                self._begin(service, level or "INFO", task, [shown]).takes(line)

    def note(self, service: str, level: str, text: str, *, task: str = "") -> None:
        """Add a record of the platform itself."""
        lines = [line[:MAX_LINE_CHARS] for line in text.splitlines()[:MAX_LINES]]
        with self._lock:
            self._begin(service, level, task, lines)

    def newest(self, chosen: LogFilter, limit: int) -> list[LogRecord]:
        """Return records that pass a filter, the newest first."""
        with self._lock:
            by_service = [reversed(records.kept) for records in self._of.values()]
            merged = heapq.merge(*by_service, key=lambda record: -record.number)
            passing = (record for record in merged if chosen.matches(record))
            return [
                replace(record, lines=[*record.lines])
                for record in itertools.islice(passing, limit)
            ]

    def _records(self, service: str) -> "_Records":
        return self._of.setdefault(service, _Records())

    def _begin(self, service: str, level: str, task: str, lines: list[str]) -> LogRecord:
        self._last_number += 1
        record = LogRecord(self._last_number, self._clock(), service, level, task, lines)
        self._records(service).append(record)
        return record


class _Records:
    """The newest records of one service."""

    def __init__(self) -> None:
        self.kept: collections.deque[LogRecord] = collections.deque()
        self._chars = 0

    @property
    def newest(self) -> LogRecord | None:
        return self.kept[-1] if self.kept else None

    def append(self, record: LogRecord) -> None:
        self.kept.append(record)
        self._count(len(record.text))

    def append_line(self, record: LogRecord, line: str) -> None:
        """Add a line to a record; one that has very many says no more."""
        if len(record.lines) < MAX_LINES:
            record.lines.append(line)
            if line.startswith(_TRACEBACK):
                record.level = "ERROR"
            self._count(len(line) + 1)

    def _count(self, chars: int) -> None:
        """Count an added line, and drop the oldest records beyond the limits."""
        self._chars += chars
        while len(self.kept) > MAX_RECORDS or self._chars > MAX_CHARS:
            self._chars -= len(self.kept.popleft().text)
