"""Production's limit on writes of one entity, simulated: an emulator has none.

Datastore writes an entity about once a second in the long run, and more often for a moment. What
comes faster waits, and then loses its race (ABORTED). An emulator writes the same entity hundreds
of times a second, so that one shard looks as good as many. This stands between the app and the
emulator and delays commits, or aborts them, as the service would.

Each write of an entity takes a ticket from memcached, so that all processes share the limit. In ten
seconds the n-th ticket is good from second n - 1 on: a write now and then never waits, and a hot
entity is written ten times in ten seconds. Without memcached nothing is limited.

How long the service makes a writer wait before it aborts is not published. The numbers here are
ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import grpc

from pipelines.runtime import Cache

WRITES_PER_S = 1.0
WINDOW_S = 10.0
# Who would have to wait for longer is aborted, after so long.
MAX_WAIT_S = 1.0
ABORT_AFTER_S = 0.1
LIMITED_KINDS = ("CounterShard", "CounterTotal")


class Contended(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """What the service says to a commit that has waited long enough: a call that has failed."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.ABORTED

    def details(self) -> str:
        return "too much contention on these datastore entities (simulated)"

    def result(self, timeout: float | None = None) -> None:
        raise self

    def exception(self, timeout: float | None = None) -> Exception:
        return self

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> None:
        return None

    def initial_metadata(self) -> tuple[()]:
        return ()

    def trailing_metadata(self) -> tuple[()]:
        return ()


class EntityWriteLimit(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Delays and aborts commits that write an entity of some counters too often."""

    def __init__(
        self,
        cache: Cache,
        declarations: Collection[str],
        *,
        now_s: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Limit the entities of some counters, by their declarations' names."""
        self.is_on = False
        self._cache = cache
        self.declarations = frozenset(declarations)
        self._now_s = now_s
        self._sleep = sleep

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        if self.is_on and details.method.endswith("/Commit"):
            for entity in self._limited(request):
                self._wait(entity)
        return continuation(details, request)

    def _limited(self, request: Any) -> Iterator[str]:
        """Return the names of the entities that are limited, of those that a commit writes."""
        for mutation in getattr(request, "_pb", request).mutations:
            operation = mutation.WhichOneof("operation")
            written = getattr(mutation, operation)
            last = (written if operation == "delete" else written.key).path[-1]
            if last.kind in LIMITED_KINDS and last.name.split("|")[1] in self.declarations:
                yield f"{last.kind}|{last.name}"

    def _wait(self, entity: str) -> None:
        """Wait for a ticket to be good.

        Raises:
            Contended: it would be too long.
        """
        window, elapsed_s = divmod(self._now_s(), WINDOW_S)
        name = f"write-limit:{window:.0f}:{entity}"
        ticket = self._cache.incr(name, 1, ttl_s=int(3 * WINDOW_S))
        wait_s = 0.0 if ticket is None else (ticket - 1) / WRITES_PER_S - elapsed_s
        if wait_s > MAX_WAIT_S:
            self._cache.incr_existing(name, -1)
            self._sleep(ABORT_AFTER_S)
            raise Contended
        if wait_s > 0:
            self._sleep(wait_s)
