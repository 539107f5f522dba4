"""Runs of the app, asked of it over HTTP: any app that answers GET /control/runs shows its own.

The answers of an app are not trusted. A field that is missing or of another type is shown as empty.
An app that lists no runs differs from one that does not answer.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from rollforward.local.cron.cron import Cron

URL = "/control/runs"
STATES = ("running", "finished", "cancelled")
VERBS = ("cancel", "resume", "retry")
OUTCOMES = ("done", "skipped", "failed", "retrying", "waiting")
PAGE_RUNS = 25
TIMEOUT_S = 8.0
_MAX_BYTES = 16 * 1024 * 1024


class RunsUnavailableError(Exception):
    """The app did not list its runs; the text says why."""


class RunRefusedError(Exception):
    """The app would not do that to a run; the text says why."""


@dataclass(frozen=True)
class Run:
    """One run. Times are seconds since the epoch."""

    pattern: str
    id: str
    name: str
    state: str
    args: str
    started: float | None
    ended: float | None
    counts: dict[str, int]
    expected: int
    is_partial: bool
    retry_of: str
    retried_by: str
    verbs: tuple[str, ...]

    @property
    def url(self) -> str:
        """The console's address of the run."""
        return url_of(self.pattern, self.id)

    @property
    def ended_items(self) -> int:
        """The number of items that are done, skipped or failed."""
        return sum(self.counts[outcome] for outcome in ("done", "skipped", "failed"))

    @property
    def share(self) -> float:
        """The part of its items that has ended; 1 only when the run has."""
        if self.state == "finished":
            return 1.0
        return min(self.ended_items / self.expected, 0.99) if self.expected else 0.0

    def elapsed_s(self, now_s: float) -> float | None:
        """Return how long it took, or has taken so far."""
        if self.started is None or (self.ended is None and self.state != "running"):
            return None
        return max(0.0, (self.ended or now_s) - self.started)


@dataclass(frozen=True)
class Part:
    """The items of one task, a letter for each."""

    label: str
    items: str
    attempts: int
    progressed: float | None


@dataclass(frozen=True)
class Issue:
    """An item that was not simply done, and why."""

    item: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class RunDetails:
    """A run with its parts, its first issues, and its cost."""

    run: Run
    parts: list[Part] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)
    cost: dict[str, int] = field(default_factory=dict)


class Runs:
    """Asks the app for its runs, with the scheduler's token."""

    def __init__(self, cron: Cron) -> None:
        """Ask as cron does."""
        self._cron = cron

    async def newest(
        self, *, state: str = "", name: str = "", before: str = ""
    ) -> tuple[list[Run], str]:
        """Return runs, the newest first, and where the next page begins ("": nowhere).

        Raises:
            RunsUnavailableError: the app does not say.
        """
        asked = {"state": state, "name": name, "before": before, "limit": str(PAGE_RUNS)}
        query = urlencode({key: value for key, value in asked.items() if value})
        answer = await self._ask(f"{URL}?{query}")
        return [_run(run) for run in _objects(answer.get("runs"))], _text(answer.get("next_before"))

    async def one(self, pattern: str, run_id: str) -> RunDetails | None:
        """Return a run, None if the app knows none of this id.

        Raises:
            RunsUnavailableError: the app does not say.
        """
        if not (pattern.isprintable() and run_id.isprintable()):
            return None  # An address with a line break leads to no run of any app.
        answer = await self._ask(_path(pattern, run_id), unknown={})
        if not answer:
            return None
        return RunDetails(
            run=_run(_object(answer.get("run"))),
            parts=[_part(each) for each in _objects(answer.get("parts"))],
            issues=[
                Issue(*(_text(each.get(key)) for key in ("item", "outcome", "reason")))
                for each in _objects(answer.get("issues"))
            ],
            cost={name: _whole(value) for name, value in _object(answer.get("cost")).items()},
        )

    async def control(self, pattern: str, run_id: str, verb: str) -> str:
        """Cancel, resume or retry a run; return the id of the run to look at.

        Raises:
            RunsUnavailableError: the app does not answer.
            RunRefusedError: it refuses; the text says why.
        """
        status, text = await self._asked(f"{_path(pattern, run_id)}:{verb}", method="POST")
        answer = _json(text)
        if status in (404, 409) and answer.get("detail"):
            raise RunRefusedError(_text(answer["detail"]))
        if status != 200:
            raise RunsUnavailableError(_why(status, text))
        return _text(answer.get("id")) or run_id

    async def _ask(self, path: str, unknown: dict[str, Any] | None = None) -> dict[str, Any]:
        status, text = await self._asked(path)
        if status == 404 and unknown is not None and _json(text).get("detail"):
            return unknown
        answer = _json(text)
        if status != 200 or not answer:
            raise RunsUnavailableError(_why(status, text))
        return answer

    async def _asked(self, path: str, *, method: str = "GET") -> tuple[int | None, str]:
        try:
            asking = self._cron.ask(path, method=method, max_bytes=_MAX_BYTES)
            return await asyncio.wait_for(asking, TIMEOUT_S)
        except TimeoutError:
            return None, f"no response within {TIMEOUT_S:.0f} s"


def url_of(pattern: str, run_id: str) -> str:
    """Return where the console shows a run.

    >>> url_of("continuations", "one/two")
    '/runs/continuations/one%2Ftwo'
    """
    return f"/runs/{quote(pattern, safe='')}/{quote(run_id, safe='')}"


def _path(pattern: str, run_id: str) -> str:
    return f"{URL}/{quote(pattern, safe='')}/{quote(run_id, safe='')}"


def _why(status: int | None, text: str) -> str:
    if status is None:
        return f"The app does not answer: {text}"
    if status in (404, 405) or status == 200:
        return f"This app lists no runs: GET {URL} was answered with {status}. " + (
            "An app lists them when it mounts the endpoints of rollforward/flask."
        )
    detail = _text(_json(text).get("detail"))
    return f"The app answered {status}" + (f": {detail}" if detail else ".")


def _run(answer: Mapping[str, Any]) -> Run:
    counts = _object(answer.get("counts"))
    verbs = answer.get("verbs")
    state = _text(answer.get("state"))
    return Run(
        pattern=_text(answer.get("pattern")),
        id=_text(answer.get("id")),
        name=_text(answer.get("name")) or "?",
        state=state if state in STATES else "running",
        args=_text(answer.get("args")),
        started=_seconds(answer.get("started")),
        ended=_seconds(answer.get("ended")),
        counts={outcome: _whole(counts.get(outcome)) for outcome in OUTCOMES},
        expected=_whole(answer.get("expected")),
        is_partial=answer.get("is_partial") is True,
        retry_of=_text(answer.get("retry_of")),
        retried_by=_text(answer.get("retried_by")),
        verbs=tuple(verb for verb in VERBS if verb in verbs) if isinstance(verbs, list) else (),
    )


def _part(answer: Mapping[str, Any]) -> Part:
    return Part(
        label=_text(answer.get("label")),
        items=_text(answer.get("items")),
        attempts=_whole(answer.get("attempts")),
        progressed=_seconds(answer.get("progressed")),
    )


def _json(text: str) -> dict[str, Any]:
    try:
        return _object(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else 0


def _seconds(value: Any) -> float | None:
    try:
        return datetime.fromisoformat(_text(value)).timestamp()
    except (ValueError, OverflowError):
        return None
