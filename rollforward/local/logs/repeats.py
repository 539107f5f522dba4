"""Terminal lines of repeated log records: a few lines a kind, the rest on the page Logs.

A record is shown the first time, the tenth, the hundredth, and when ten minutes have passed since
its kind was last shown. One that needs no action however long it lasts is shown only the first
time, the hundredth and the ten-thousandth. An error of the app is shown again when it comes back
after a pause, because it may be the answer to another request of its developer. Hidden lines stay
in .dev/logs/ and on the console's page Logs.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rollforward.local.logs.tail import LogRecord, level_of

PAUSE_S = 10.0
UNSHOWN_S = 600.0
_NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+")
_QUOTED = re.compile(r"'[^']*'")
_HOT_KEY = re.compile(r" rollforward\.streams\.driver: .*one worker at a time processes a key")
# A service that is away fails tasks of all paths.
_AWAY = re.compile(r"(?P<head> rollforward\.[\w.]+: )/\S+: (?=a service is unavailable)")
_WORDS = 3  # Of a message that needs no action: what follows names its subject.
_CAUSE_WORDS = 8  # What follows may name rows.
_STEP, _HARMLESS_STEP = 10, 100
_MAX_KINDS = 1000
_OF_LIBRARY = re.compile(r"(?P<level>WARNING|ERROR) rollforward\.[\w.]+: ")
_TASK = re.compile(r"( \[task \S+\])$")
_DEATH = re.compile(r"\[ERROR\] Worker \(pid:\d+\) was sent SIGKILL")  # What gunicorn says.
_DEATHS = "ERROR each worker ends while it loads the app"
NOTHING = "nothing to do"
_LASTING = re.compile(f"→ {NOTHING}.* if it ")  # It is harmless unless it does.
_CACHE_IS = re.compile(r" rollforward\.[\w.]+: memcached (?P<state>is away|answers again)")
# What to do about a record of the library, by its text; the first that matches.
_ADVICE = tuple(
    (re.compile(text), advice)
    for text, advice in (
        (
            "gave up '/tasks/(batches/[^/]+/(?!completed')|flows/)",
            "look at the run in the console, which says what failed: run that again, or cancel it",
        ),
        ("dead-lettered|gave up", "look at the dead task in the console: replay or delete it"),
        ("is of job .* not known", "add the job to the app, or cancel the run"),
        ("Cloud Tasks refuses", "correct the task's queue or arguments, or cancel it"),
        ("memcached is away", f"{NOTHING}; if it stays away, run `rollforward doctor`"),
        (
            "service is unavailable|arguments cannot be read",
            f"{NOTHING}: it is retried; if it lasts, `rollforward doctor`",
        ),
        (
            r"^refused \w+ '/(metrics|control|cron)\b",
            "send a token of the platform's console: docs/operations.md, Gauges, has the command",
        ),
        ("^refused ", "send it through its queue: task endpoints accept Cloud Tasks alone"),
        (
            "waits for another version",
            f"{NOTHING} in a deployment; a renamed task keeps its path: @rf.task('/tasks/old')",
        ),
        ("does not process .* here: version", "bring that code back, or replace or detach it"),
        ("not in this version", "retire the table, or deploy the version that has it"),
        ("cannot tell when|are not received", "check that the temporary folder is writable"),
        ("the step .* failed|the flow .* failed", "see the run in the console, and its step"),
        ("one worker at a time processes a key", "if the pipeline lags, do so"),
        ("a request failed", "the traceback names the line"),
    )
)


def with_hint(line: str) -> str:
    """Return a line of the library with what to do about it, before the task that it is about.

    >>> with_hint("WARNING rollforward.outbox.pattern: relayed 3 rows [task default/1]")
    'WARNING rollforward.outbox.pattern: relayed 3 rows → nothing to do [task default/1]'
    """
    advice = _hint_for(line)
    if advice is None:
        return line
    task = _TASK.search(line)
    message = line[: task.start()] if task else line
    return f"{message} → {advice}{task[1] if task else ''}"


def _hint_for(line: str) -> str | None:
    """Return what to do about a line of the library or of gunicorn; None: it is another's."""
    if _DEATH.search(line):
        return f"{NOTHING}: another one starts; if it lasts, free memory"
    if line.startswith(_DEATHS):
        return f"{NOTHING}: others start; if it lasts, mend what ends them, and save"
    head = _OF_LIBRARY.match(line)
    if head is None:
        return None
    text = line[head.end() :]
    otherwise = NOTHING if head["level"] == "WARNING" else "see the page Logs of the console"
    return next((advice for pattern, advice in _ADVICE if pattern.search(text)), otherwise)


def kind_of(line: str) -> str:
    """Return what two records have in common that say the same of different subjects.

    A path, a name or a cause is left out only where another one calls for no other action.

    >>> kind_of("WARNING shop: 7 books") == kind_of("WARNING shop: 8 books")
    True
    >>> kind_of("WARNING rollforward.a: /tasks/x: a service is unavailable: 503 Socket closed")
    'WARNING rollforward.a a service is N Socket closed'
    """
    line = _AWAY.sub(r"\g<head>", _TASK.sub("", line))
    is_hot_key = _HOT_KEY.search(line) is not None
    advice = f"→ {_hint_for(line)}"
    line = _NUMBERS.sub("N", _QUOTED.sub("'N'", line) if is_hot_key else line)
    level, _, rest = line.partition(" ")
    logger, _, message = rest.partition(": ")
    words = message.split()
    if NOTHING not in advice and not is_hot_key:
        return " ".join([level, logger, *words[:_CAUSE_WORDS]])
    cause = message.partition(": ")[2].split() if _LASTING.search(advice) else []
    return " ".join([level, logger, *words[:_WORDS], *cause[:_CAUSE_WORDS]])


@dataclass
class _Kind:
    """The records of a kind so far."""

    count: int = 0
    seen_at: float = 0.0
    shown_at: float = 0.0


@dataclass
class Repeats:
    """Counts of one service's loud lines by kind, and the choice of the shown ones."""

    clock: Callable[[], float] = time.monotonic
    _kinds: dict[str, _Kind] = field(default_factory=dict)
    _hidden: LogRecord | None = None
    _says_away: bool = False  # The last line shown about memcached does.

    def filter_line(self, line: str) -> str | None:
        """Return a line as it is shown; None: it is left to the page Logs."""
        level = level_of(line)
        if level is None:
            if self._hidden is not None and self._hidden.takes(line):
                return None
            self._hidden = None
            return line
        shown = with_hint(line)
        is_harmless = f"→ {NOTHING}" in shown
        cache = _CACHE_IS.search(line)
        is_back = cache is not None and cache["state"] == "answers again"
        count = self._count(
            kind_of(line),
            step=_HARMLESS_STEP if is_harmless and not _LASTING.search(shown) else _STEP,
            pause_s=PAUSE_S if level == "ERROR" and not is_harmless else UNSHOWN_S,
            is_owed=self._says_away and is_back,
        )
        if cache and count is not None:
            self._says_away = not is_back
        if count is None:
            self._hidden = LogRecord(0, 0.0, "", level, "", [line])
            return None
        self._hidden = None
        return shown + _so_far(count)

    def filter_note(self, text: str) -> str | None:
        """Return a note of the platform as it is shown; None: it comes too often to be shown."""
        count = self._count(kind_of(f"ERROR platform: {text}"), _STEP, UNSHOWN_S)
        return None if count is None else text + _so_far(count)

    def _count(self, name: str, step: int, pause_s: float, *, is_owed: bool = False) -> int | None:
        """Count a record; return the number of its kind if it is shown: 1, step, step², ...

        Args:
            step: With _HARMLESS_STEP time alone shows nothing.
            pause_s: After this pause it is shown, at any number.
            is_owed: It is shown, because the last line shown is not true any more.
        """
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        kind, now = self._kinds.setdefault(name, _Kind()), self.clock()
        has_paused = now - kind.seen_at > pause_s or now - kind.shown_at > UNSHOWN_S
        is_due = is_owed or (has_paused and step != _HARMLESS_STEP)
        kind.count += 1
        kind.seen_at = now
        if not (is_due or _is_power(kind.count, step)):
            return None
        kind.shown_at = now
        return kind.count


def _is_power(count: int, step: int) -> bool:
    """Return whether a count is 1, step, step², ..."""
    while count % step == 0:
        count //= step
    return count == 1


def _so_far(count: int) -> str:
    return f" ({count} times so far)" if count > 1 else ""
