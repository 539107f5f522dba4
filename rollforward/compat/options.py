"""Options of a deferred call: the keyword arguments that begin with an underscore."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Any

from rollforward.runtime import Clients
from rollforward.tasks import BadArgumentsError, Task

NAMES = ("_countdown", "_eta", "_name", "_queue", "_transactional")
GONE = {
    "_url": "a function has one path: write @deferred.deferrable(path=...)",
    "_target": "tasks are delivered to the target of the app's settings, TASKS_URL",
    "_headers": "pass it as an argument of the function",
    "_retry_options": "write @deferred.deferrable(max_attempts=...); the queue has the delays",
}


@dataclass(frozen=True)
class Options:
    """The options of one call, checked."""

    countdown_s: float | None
    eta: datetime.datetime | None
    name: str | None
    queue: str | None
    transactional: bool | None

    @classmethod
    def taken_from(cls, kwargs: dict[str, Any]) -> Options:
        """Take the options out of the keyword arguments of a call.

        Raises:
            BadArgumentsError: one is no longer taken, or has a wrong type.
        """
        for name, advice in GONE.items():
            if kwargs.pop(name, None) is not None:
                raise BadArgumentsError(f"{name} is no longer taken: {advice}")
        countdown, eta, name, queue, transactional = (kwargs.pop(name, None) for name in NAMES)
        if countdown is not None and eta is not None:
            raise BadArgumentsError("_countdown and _eta cannot be passed together")
        _check("_eta", eta, datetime.datetime)
        _check("_name", name, str)
        _check("_queue", queue, str)
        _check("_transactional", transactional, bool)
        return cls(_seconds(countdown), eta, name, queue, transactional)

    def at(self, clients: Clients) -> datetime.datetime | None:
        """Return when the task is due; None: now.

        Raises:
            BadArgumentsError: in more than 30 days.
        """
        eta = self.eta
        if eta is not None and eta.tzinfo is None:
            eta = eta.replace(tzinfo=datetime.UTC)
        return Task.due(clients, self.countdown_s or 0, eta)


def _check(option: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise BadArgumentsError(f"{option} must be a {kind.__name__}, got {value!r:.100}")


def _seconds(countdown: Any) -> float | None:
    if countdown is None:
        return None
    try:
        seconds = float(countdown)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise BadArgumentsError(f"_countdown must be a number of seconds, got {countdown!r:.100}")
    return seconds
