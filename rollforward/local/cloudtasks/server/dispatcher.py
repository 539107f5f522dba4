"""Sends the attempts that the engine begins, and brings the responses back.

One loop begins attempts when something changed or fell due; each attempt is a
task of its own. The engine decides everything; here is only HTTP and waiting.
"""

import asyncio
import functools
import logging
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from yarl import URL

from rollforward.local.cloudtasks.delivery.reasons import reason_of
from rollforward.local.cloudtasks.delivery.statuses import DEADLINE_EXCEEDED
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol.names import short
from rollforward.local.cloudtasks.protocol.validation import percent_encoded
from rollforward.local.cloudtasks.server.http_client import HttpClient, HttpResponse
from rollforward.local.cloudtasks.store.records import Attempt, Response

KillWorker = Callable[[Attempt], Awaitable[None]]

# gunicorn closes idle connections after two seconds; a request sent into a
# closing connection would count as a failed attempt. And its workers share
# connections evenly, not requests: with idle ones kept for a second, all of a
# few long tasks often came to one worker.
_KEEPALIVE_S = 0.1
# So many attempts of a queue begin before responses are read. A response frees a connection for
# the next request: of a long backlog, begun at once, each request would open one of its own.
_BEGUN_AT_ONCE = 4
_SWEEP_EVERY_S = 60.0
_MAX_REDIRECTS = 5
_SAME_REQUEST = {307, 308}
_REDIRECTS = _SAME_REQUEST | {301, 302, 303}

log = logging.getLogger(__name__)


class Dispatcher:
    """Runs on one event loop, from start() to stop().

    Args:
        kill_worker: Kills the process that runs the handlers (fault kill_worker).
    """

    def __init__(self, engine: Engine, kill_worker: KillWorker | None = None) -> None:
        self._engine = engine
        self._kill_worker = kill_worker
        self._wake = asyncio.Event()
        self._is_woken = False
        self._deliveries: dict[int, asyncio.Task[None]] = {}
        self._deadlines: dict[int, tuple[asyncio.Timeout, float]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._http = HttpClient(_KEEPALIVE_S)
        self._offset_s = engine.clock.offset_s
        self._is_held = False
        self._ended: list[tuple[Attempt, Response]] = []

    async def start(self) -> None:
        """Begin to dispatch."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._engine.change_listeners.append(self._changed)
        self._engine.reset_listeners.append(self._was_reset)
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._sweep())]

    def hold(self) -> None:
        """Begin no attempt from now on; those in progress continue, and their responses count.

        The workers are on their way out. An attempt that a shutdown cuts off is not recorded as a
        failure of its task. It begins again at the next start.
        """
        self._is_held = True

    @property
    def in_progress(self) -> int:
        """The number of attempts that have begun and not ended."""
        return len(self._deliveries)

    async def stop(self) -> None:
        """Stop at once; attempts in progress are cut off and start again next time."""
        self._engine.change_listeners.remove(self._changed)
        self._engine.reset_listeners.remove(self._was_reset)
        pending = [*self._tasks, *self._deliveries.values()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self._end_all()
        await self._http.close()

    # --- waking up --------------------------------------------------------

    def _changed(self) -> None:
        """Wake the loop, from any thread; many changes wake it once."""
        if not self._is_woken:
            self._is_woken = True
            if threading.get_ident() == self._thread_id:
                self._wake.set()
            else:
                self._loop.call_soon_threadsafe(self._wake.set)

    def _was_reset(self) -> None:
        self._loop.call_soon_threadsafe(self._close_removed)

    def _close_removed(self) -> None:
        """Hang up on the attempts that a reset has forgotten."""
        for attempt_id, task in list(self._deliveries.items()):
            if not self._engine.attempts.is_running(attempt_id):
                task.cancel()

    async def _run(self) -> None:
        while True:
            self._is_woken = False
            self._wake.clear()
            self._follow_clock()
            for attempt in [] if self._is_held else await self._begin_ready():
                delivery = self._loop.create_task(self._deliver(attempt))
                self._deliveries[attempt.id] = delivery
                delivery.add_done_callback(lambda _, key=attempt.id: self._deliveries.pop(key))
            await self._sleep()

    async def _begin_ready(self) -> list[Attempt]:
        """Begin what may go; an error of ours must not end the dispatching of the rest."""
        try:
            return self._engine.begin_ready(_BEGUN_AT_ONCE)
        except Exception:
            log.exception("Dispatching failed; trying again in a second")
            await asyncio.sleep(1)
            self._wake.set()
            return []

    async def _sleep(self) -> None:
        """Wait for a change or for the next due time."""
        wake_at = None if self._is_held else self._engine.wake_at()
        if wake_at is None:
            await self._wake.wait()
            return
        delay_s = wake_at - self._engine.clock.now()
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        handle = self._loop.call_later(delay_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            handle.cancel()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            try:
                self._engine.sweep()
            except Exception:
                log.exception("The sweep failed; the next one is in a minute")

    def _follow_clock(self) -> None:
        """Move the deadlines of running attempts when the clock was advanced."""
        moved_s = self._engine.clock.offset_s - self._offset_s
        if moved_s <= 0:
            self._offset_s = self._engine.clock.offset_s
            return
        self._offset_s = self._engine.clock.offset_s
        for attempt_id, (timeout, at) in list(self._deadlines.items()):
            self._deadlines[attempt_id] = (timeout, at - moved_s)
            if not timeout.expired():
                timeout.reschedule(at - moved_s)

    # --- one delivery -----------------------------------------------------

    async def _deliver(self, attempt: Attempt) -> None:
        try:
            if attempt.kills_worker and self._kill_worker is not None:
                response = await self._send_and_kill(attempt, self._kill_worker)
            elif attempt.answers_500:
                response = Response(500, body=b"Answered by the fault rule 'error'.")
            else:
                response = await self._send_by_deadline(attempt)
        except Exception as error:
            log.exception("Attempt %s of %s failed", attempt.number, attempt.task.name)
            response = Response(error=f"UNAVAILABLE: {error!r}")
        if self._is_held and response.status is None:
            return
        if not self._ended:
            self._loop.call_soon(self._end_all)
        self._ended.append((attempt, response))

    def _end_all(self) -> None:
        """End the attempts whose responses have come, in one transaction of the store."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        try:
            with self._engine.change():
                for attempt, response in ended:
                    self._end(attempt, response)
        except sqlite3.Error:
            log.exception("%d ended attempts were not stored, and are sent again", len(ended))

    def _end(self, attempt: Attempt, response: Response) -> None:
        """End an attempt; an error of ours must not keep the others from ending."""
        try:
            is_known = self._engine.attempts.end(attempt.id, response) is not None
        except Exception:
            log.exception("Attempt %s of %s", attempt.number, attempt.task.name)
        else:
            if is_known:
                _log_end(attempt)

    async def _send_by_deadline(self, attempt: Attempt) -> Response:
        """Send; on the deadline drop the connection."""
        at = self._loop.time() + attempt.deadline_s
        try:
            async with asyncio.timeout_at(at) as timeout:
                self._deadlines[attempt.id] = (timeout, at)
                return await self._send(attempt)
        except TimeoutError:
            return Response(error=DEADLINE_EXCEEDED)
        finally:
            self._deadlines.pop(attempt.id, None)

    async def _send(self, attempt: Attempt) -> Response:
        try:
            return await self._send_request(attempt, to_address(attempt.url), attempt.headers)
        except (OSError, ValueError) as error:
            return Response(error=f"UNAVAILABLE: {error or type(error).__name__}")

    async def _send_request(
        self,
        attempt: Attempt,
        url: URL,
        headers: dict[str, str],
        redirects_left: int = _MAX_REDIRECTS,
    ) -> Response:
        """Make the request and return the response, of the redirected worker if there is one."""
        response = await self._http.request(attempt.method, url, headers, attempt.body)
        target = _redirected(attempt, url, response)
        if target is None or not redirects_left:
            return Response(response.status, headers=response.headers, body=response.body)
        if target.origin() != url.origin():
            headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        return await self._send_request(attempt, target, headers, redirects_left - 1)

    async def _send_and_kill(self, attempt: Attempt, kill_worker: KillWorker) -> Response:
        """Kill the worker while it handles the request; its response is lost."""
        sending = self._loop.create_task(self._send(attempt))
        try:
            await asyncio.sleep(attempt.kill_after_s)
            await kill_worker(attempt)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return Response(error="UNAVAILABLE: the worker was killed (fault kill_worker).")


def _log_end(attempt: Attempt) -> None:
    """Log how an attempt ended, for the console: the terminal has the app's own output."""
    if not log.isEnabledFor(logging.INFO):
        return
    reason = reason_of(attempt.response_body)
    reason_text = attempt.error or (reason.detail if reason else "")
    level = logging.INFO if attempt.has_succeeded else logging.ERROR
    if attempt.status in (409, 429, 503) and not attempt.error:
        level = logging.WARNING
    copy = f" ({attempt.kind})" if attempt.is_copy else ""
    log.log(
        level,
        "%s%s: %s in %.0f ms%s",
        attempt.task.path,
        copy,
        attempt.status or "no response",
        attempt.duration_ms,
        f", {reason_text.splitlines()[0]}" if reason_text else "",
        extra={"task": f"{short(attempt.task.queue)}/{short(attempt.task.name)}", "is_quiet": True},
    )


def _redirected(attempt: Attempt, url: URL, response: HttpResponse) -> URL | None:
    """Return where a redirect sends the same request, None if it does not.

    The service documents that it may follow an HTTP target's redirect, and not which request it
    makes then. So only what HTTP leaves no choice in is followed. After another redirect a POST
    would continue as a GET without its body, and a 2xx would end a task whose work was not done.
    Such a redirect is the attempt's response, and a failure.
    """
    keeps = _SAME_REQUEST if attempt.method not in ("GET", "HEAD") else _REDIRECTS
    if not attempt.follows_redirects or response.status not in keeps:
        return None
    location = response.header("location")
    return url.join(to_address(location)) if location else None


@functools.lru_cache(1024)
def to_address(url: str) -> URL:
    """Return an address that goes out as it was given, with characters outside ASCII encoded."""
    host = urlsplit(url).netloc
    if not host.isascii():
        url = url.replace(host, URL(f"//{host}").raw_authority, 1)
    return URL(percent_encoded(url), encoded=True)
