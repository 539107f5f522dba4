"""Interceptors that make the clients of a local app as slow as the services.

An interceptor on the channels of Datastore and Cloud Tasks makes each call last as long as the
profile draws, the emulator's own time included. A commit, and each call in a transaction, waits
half of the time before it and half after it, so locks are held, and races lost, about as long as in
the cloud. Other reads run at once and are answered later, without delaying other calls of their
thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from rollforward.cloud_profile.profile import Profile, load
from rollforward.runtime import Cache
from rollforward.runtime.channel.write_limit import EntityWriteLimit, Pace, Tickets

_CALLS = {
    "Lookup": "lookup",
    "RunQuery": "query",
    "RunAggregationQuery": "query",
    "Commit": "commit",
    "BeginTransaction": "begin_transaction",
    "Rollback": "rollback",
    "CreateTask": "create_task",
    "BatchCreateTasks": "create_task",
}
# A process tells the others of its traffic when it has grown by so many operations.
RAMP_LUMP = 25
RAMP_WINDOW_S = 1.0


@dataclass(frozen=True)
class SlowedServices:
    """The slow cache and the interceptors of a local app's clients.

    Attributes:
        cache: memcached, as slow as the profile says.
        datastore: Interceptors of its channel, the outermost first.
        tasks: Interceptors of the channel of Cloud Tasks.
    """

    cache: Cache
    datastore: tuple[Any, ...]
    tasks: tuple[Any, ...]


def slowed(path: str, cache: Cache) -> SlowedServices:
    """Return what makes an app as slow as the profile of a file; its limits need a cache.

    Raises:
        ProfileError: the file is no profile.
    """
    profile = load(Path(path))
    tickets = Tickets(cache)
    pace = Pace(
        profile["entity_writes.per_s"],
        profile["entity_writes.window_s"],
        profile["entity_writes.max_wait_s"],
        profile["entity_writes.abort_after_s"],
    )
    drawn = RandomLatency(profile)
    limit = EntityWriteLimit(tickets, pace=pace, is_on=True)
    return SlowedServices(
        SlowCache(cache, profile), (limit, KindRamp(profile, tickets), drawn), (drawn,)
    )


class RandomLatency(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Makes each call of a channel last as long as its profile draws."""

    def __init__(
        self,
        profile: Profile,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._profile = profile
        self._random = profile.random()
        self._sleep = sleep
        self._monotonic = monotonic

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        began = self._monotonic()
        rpc = details.method.rpartition("/")[2]
        message = getattr(request, "_pb", request)
        wait_s = self._random_s(rpc, message)
        if rpc != "Commit" and not _is_in_transaction(rpc, message):
            return self._delayed(continuation(details, request), began + wait_s)
        self._sleep(wait_s / 2)
        return self._delayed(continuation(details, request), began + wait_s)

    def _random_s(self, rpc: str, message: Any) -> float:
        call = _CALLS.get(rpc)
        if call is None:
            return 0.0
        if call == "create_task" and _is_named(rpc, message):
            call = "create_named_task"
        return self._profile.draw(call, self._random, _items(rpc, message))

    def _delayed(self, call: Any, at: float) -> Any:
        """Return a call as it is answered at a moment."""
        left_s = at - self._monotonic()
        if left_s <= 0:
            return call
        if not call.done():  # The caller wants a future: its thread continues.
            return DelayedReply(call, at, self._monotonic)
        self._sleep(left_s)
        return call


class DelayedReply(grpc.Call, grpc.Future):  # type: ignore[misc]
    """A call whose answer is withheld until a moment."""

    def __init__(self, call: Any, at: float, monotonic: Callable[[], float]) -> None:
        self._call = call
        self._at = at
        self._monotonic = monotonic

    def result(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        return self._call.result(timeout)

    def exception(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        return self._call.exception(timeout)

    def traceback(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        return self._call.traceback(timeout)

    def done(self) -> bool:
        return self._left_s() <= 0 and bool(self._call.done())

    def running(self) -> bool:
        return not self.done()

    def cancel(self) -> bool:
        return bool(self._call.cancel())

    def cancelled(self) -> bool:
        return bool(self._call.cancelled())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        def then(_: Any) -> None:
            left_s = self._left_s()
            if left_s <= 0:
                callback(self)
                return
            timer = threading.Timer(left_s, callback, [self])
            timer.daemon = True
            timer.start()

        self._call.add_done_callback(then)

    def code(self) -> Any:
        return self._call.code()

    def details(self) -> Any:
        return self._call.details()

    def initial_metadata(self) -> Any:
        return self._call.initial_metadata()

    def trailing_metadata(self) -> Any:
        return self._call.trailing_metadata()

    def is_active(self) -> bool:
        return bool(self._call.is_active())

    def time_remaining(self) -> Any:
        return self._call.time_remaining()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return bool(self._call.add_callback(callback))

    def _left_s(self) -> float:
        return self._at - self._monotonic()

    def _wait(self, timeout: float | None) -> None:
        left_s = self._left_s()
        if timeout is not None and left_s > timeout:
            time.sleep(timeout)
            raise grpc.FutureTimeoutError
        if left_s > 0:
            time.sleep(left_s)


class KindRamp(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Holds traffic of each kind of entity to the ramp of a new one."""

    def __init__(
        self, profile: Profile, tickets: Tickets, now_s: Callable[[], float] = time.time
    ) -> None:
        self._profile = profile
        self._tickets = tickets
        self._now_s = now_s
        self._began: dict[str, float] = {}
        self._untold: Counter[str] = Counter()
        self._lock = threading.Lock()

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        rpc = details.method.rpartition("/")[2]
        for kind, count in Counter(_kinds(rpc, getattr(request, "_pb", request))).items():
            self._pass(kind, count)
        return continuation(details, request)

    def _pass(self, kind: str, count: int) -> None:
        """Wait until the ramp allows the operations.

        Raises:
            Contended: it would be too long.
        """
        now = self._now_s()
        with self._lock:
            elapsed_s = now - self._began.setdefault(kind, now)
            self._untold[kind] += count
            lump = self._untold[kind]
            if lump < RAMP_LUMP:
                return
            self._untold[kind] = 0
        per_s = self._profile.allowed_per_s("ramp", elapsed_s)
        wait_s = self._profile["entity_writes.max_wait_s"]
        # A window's whole rate is good at once.
        pace = Pace(per_s, RAMP_WINDOW_S, wait_s, self._profile["entity_writes.abort_after_s"])
        self._tickets.take(f"ramp:{kind}", pace, lump, at_once=per_s * RAMP_WINDOW_S)


class SlowCache:
    """memcached, as slow as its profile draws."""

    def __init__(
        self, cache: Cache, profile: Profile, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._cache = cache
        self._profile = profile
        self._random = profile.random()
        self._sleep = sleep

    def get(self, key: str) -> bytes | None:
        self._wait()
        return self._cache.get(key)

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        self._wait()
        return self._cache.set(key, value, ttl_s)

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        self._wait()
        return self._cache.add(key, value, ttl_s)

    def delete(self, key: str) -> bool:
        self._wait()
        return self._cache.delete(key)

    def incr(self, key: str, delta: int, ttl_s: int) -> int | None:
        self._wait()
        return self._cache.incr(key, delta, ttl_s)

    def incr_existing(self, key: str, delta: int) -> int | None:
        self._wait()
        return self._cache.incr_existing(key, delta)

    def ping(self) -> bool:
        self._wait()
        return self._cache.ping()

    def close(self) -> None:
        self._cache.close()

    def _wait(self) -> None:
        self._sleep(self._profile.draw("memcached", self._random))


def _is_in_transaction(rpc: str, message: Any) -> bool:
    """Return whether a call is a transaction's, and waited for by its thread."""
    match rpc:
        case "BeginTransaction" | "Rollback":
            return True
        case "Lookup":
            return bool(message.read_options.transaction)
        case _:
            return False


def _is_named(rpc: str, message: Any) -> bool:
    requests = [message] if rpc == "CreateTask" else message.requests
    return any(request.task.name for request in requests)


def _items(rpc: str, message: Any) -> int:
    match rpc:
        case "Lookup":
            return len(message.keys)
        case "Commit":
            return len(message.mutations)
        case "BatchCreateTasks":
            return len(message.requests)
        case _:
            return 1


def _kinds(rpc: str, message: Any) -> Iterator[str]:
    """Yield the kind of each entity that a call is about."""
    if rpc == "Lookup":
        yield from (key.path[-1].kind for key in message.keys)
    elif rpc == "Commit":
        for mutation in message.mutations:
            operation = mutation.WhichOneof("operation")
            if operation is not None:
                written = getattr(mutation, operation)
                yield (written if operation == "delete" else written.key).path[-1].kind
