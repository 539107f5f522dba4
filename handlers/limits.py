"""Rate limit of an address: requests a minute, if the settings name a limit.

memcached counts them for all processes together, in windows of a minute. Around the turn of a
window an address may make twice as many. Without memcached no caller is limited, and the log says
so. Tasks, cron and health checks are not counted, because their callers are proven or costless.

Lost on failure: counts, at most a minute's.
"""

from __future__ import annotations

import logging

from flask import Flask, request
from werkzeug.exceptions import TooManyRequests

from rollforward.flask.context import clients, is_machine_path
from rollforward.flask.guards.callers import caller

log = logging.getLogger(__name__)

WINDOW_S = 60
NOT_COUNTED = ("/health/", "/_ah/", "/static/")


class Limit:
    """The limit of one app."""

    def __init__(self, limit: int, platform: str) -> None:
        """Allow each address `limit` requests a minute."""
        self._limit = limit
        self._platform = platform
        self._counts = True

    def check(self) -> None:
        """Refuse a request of an address that has made too many.

        Raises:
            TooManyRequests: until the minute is over.
        """
        if is_machine_path() or request.path.startswith(NOT_COUNTED):
            return
        window, passed_s = divmod(int(clients().clock.now().timestamp()), WINDOW_S)
        name = f"limits:{window}:{caller(self._platform)}"
        count = clients().cache.incr(name, 1, ttl_s=2 * WINDOW_S)
        self._tell(counts=count is not None)
        if count is not None and count > self._limit:
            message = f"An address may make {self._limit} requests a minute. Try again later."
            raise TooManyRequests(message, retry_after=WINDOW_S - passed_s)

    def _tell(self, *, counts: bool) -> None:
        if counts != self._counts:
            self._counts = counts
            log.warning("addresses are limited%s", " again" if counts else " no more: no memcached")


def register(app: Flask, requests_per_minute: int | None, platform: str) -> None:
    """Limit the callers of an app; None: it has no limit."""
    if requests_per_minute is not None:
        app.before_request(Limit(requests_per_minute, platform).check)
