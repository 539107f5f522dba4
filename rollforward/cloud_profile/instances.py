"""Instances that start cold: the first request of a process, or of one that was idle, waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from rollforward.cloud_profile.profile import Profile

WsgiApp = Callable[[Any, Any], Iterable[bytes]]


class ColdStart:
    """A process's app, behind the start of its instance.

    The first request begins the start, and concurrent requests wait for its end. An instance
    without requests for a while is gone, and the next request starts another one.
    """

    def __init__(
        self,
        app: WsgiApp,
        profile: Profile,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._profile = profile
        self._random = profile.random()
        self._sleep = sleep
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._ready_at: float | None = None
        self._used_at = 0.0

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        left_s = self._left_s()
        if left_s > 0:
            self._sleep(left_s)
        return self._app(environ, start_response)

    def _left_s(self) -> float:
        """Return how long the start of this instance still takes."""
        with self._lock:
            now_s = self._monotonic()
            if self._ready_at is None or now_s - self._used_at > self._profile["instances.idle_s"]:
                self._ready_at = now_s + self._profile.draw("cold_start", self._random)
            self._used_at = max(now_s, self._ready_at)
            return self._ready_at - now_s
