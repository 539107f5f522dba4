"""Requests of a worker, repeated inside of that worker with each SDK in turn.

Other load changes the speed of a machine by a tenth within a second, and the cost of spans is less.
So the turns are tens of milliseconds long, and the figure is the processor time, which bounds the
throughput of a worker.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.tracing.switch import OFF, STATES, Sdk

REPEATED = 4  # Requests per turn.
FLUSHED_EVERY = 80  # Rounds: spans are sent in batches, as in production.

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Replays:
    """A WSGI app that keeps the last request of each path."""

    def __init__(self, app: Wsgi) -> None:
        self._app = app
        self._requests: dict[str, tuple[dict[str, str], bytes]] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        texts = {key: value for key, value in environ.items() if isinstance(value, str)}
        self._requests[environ["PATH_INFO"]] = texts, body
        environ["wsgi.input"] = io.BytesIO(body)
        return self._app(environ, start)

    def compare(self, sdk: Sdk, path: str, seconds: float) -> dict[str, list[float]]:
        """Repeat the last request of a path; return the processor ms a request, by state and turn.

        The time of sending spans counts for the turns that made them. Rounds begin with different
        states.
        """
        times: dict[str, list[float]] = {state: [] for state in STATES}
        ends_at, number = time.monotonic() + seconds, 0
        while time.monotonic() < ends_at:
            for turn in range(len(STATES)):
                state = STATES[(number + turn) % len(STATES)]
                sdk.turn(state)
                times[state].append(_used_ms(lambda: self._repeat(path, sdk)) / REPEATED)
            number += 1
            if number % FLUSHED_EVERY == 0:
                _add_flushes(sdk, times)
        sdk.turn(OFF)
        return times

    def _repeat(self, path: str, sdk: Sdk) -> None:
        for _ in range(REPEATED):
            self._send(path)
            sdk.end_request()

    def _send(self, path: str) -> None:
        texts, body = self._requests[path]
        environ = {
            **texts,
            "wsgi.version": (1, 0),
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
        }
        statuses: list[str] = []
        list(self._app(environ, lambda status, headers, error=None: statuses.append(status)))
        if not statuses[0].startswith("2"):
            raise RuntimeError(f"{path} answered {statuses[0]}")


def _add_flushes(sdk: Sdk, times: dict[str, list[float]]) -> None:
    """Send the pending spans, and distribute the time equally to the turns since the last flush."""
    for state, figures in times.items():
        flush_ms = _used_ms(lambda state=state: sdk.flush(state))  # type: ignore[misc]
        for number in range(len(figures) - FLUSHED_EVERY, len(figures)):
            figures[number] += flush_ms / (FLUSHED_EVERY * REPEATED)


def _used_ms(work: Callable[[], object]) -> float:
    """Return this process's milliseconds of processor time for some work."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3
