"""The queues of the API: created, changed, paused, purged, deleted, listed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rollforward.local.cloudtasks.engine.engine_state import EngineState
from rollforward.local.cloudtasks.engine.queue_state import QueueState
from rollforward.local.cloudtasks.protocol import errors, messages, validation
from rollforward.local.cloudtasks.protocol.listing import QueueFilter
from rollforward.local.cloudtasks.protocol.names import parent_of
from rollforward.local.cloudtasks.protocol.paging import PageTokens
from rollforward.local.cloudtasks.store.records import DELETED
from rollforward.local.cloudtasks.store.tables import StoredQueue

MAX_QUEUES_PAGE = 9800

_YAML_DIGEST = "queue_yaml_digest"


@dataclass(frozen=True)
class Traits:
    """A queue's kind, and how long it keeps tasks and their names, which v2 does not say."""

    is_pull: bool
    task_ttl_s: float
    tombstone_ttl_s: float


class Queues:
    """The queues of one engine; each public method is one transaction of the store."""

    def __init__(self, state: EngineState, page_tokens: PageTokens) -> None:
        self._state = state
        self._page_tokens = page_tokens

    def create(self, parent: str, request: Any, *, is_pull: bool = False) -> Any:
        """Create a queue and return its message.

        Args:
            is_pull: Its tasks are for leases; v2 has no field for that.

        Raises:
            Refused: its name is malformed, in use, or was so too recently.
        """
        state = self._state
        with state.change():
            state.place.check_parent(parent)
            state.place.check_new_queue_name(request.name, parent)
            if request.name in state.queues:
                raise errors.queue_exists()
            return self._new(request, is_pull).message

    def update(self, request: Any, paths: Iterable[str], *, is_pull: bool | None = None) -> Any:
        """Change a queue, or create it when it is missing.

        Args:
            is_pull: Whether the caller asks for a pull queue, None if it does not say.

        Raises:
            Refused: a name, path or value the service would not take, or another kind of queue.
        """
        state = self._state
        with state.change():
            state.place.check_new_queue_name(request.name)
            queue = state.queues.get(request.name)
            if queue is None:
                return self._new(request, bool(is_pull)).message
            if is_pull not in (None, queue.is_pull):
                raise errors.invalid("A queue cannot change between push and pull.")
            message = validation.updated_queue(
                queue.message, request, list(paths), is_pull=queue.is_pull
            )
            validation.check_queue(message)
            queue.configure(message, queue.from_yaml, state.clock.now())
            self._save(queue)
            return queue.message

    def put_from_yaml(self, message: Any, *, is_pull: bool = False) -> None:
        """Create or replace a queue as queue.yaml declares it, paused or running included.

        Args:
            is_pull: Its tasks are for leases; same as the existing queue, if there is one.
        """
        state = self._state
        with state.change():
            queue = state.queues.get(message.name)
            if queue is None:
                queue = state.new_queue(message, True, state.clock.now(), is_pull=is_pull)
                state.queues[message.name] = queue
            queue.configure(message, True, state.clock.now())
            self._save(queue)

    def yaml_digest(self) -> Any:
        """Return the digest of the queue.yaml that was applied last, None before the first."""
        with self._state.lock:
            return self._state.store.meta(_YAML_DIGEST)

    def set_yaml_digest(self, digest: str) -> None:
        """Keep the digest of the queue.yaml that has been applied."""
        with self._state.change():
            self._state.store.set_meta(_YAML_DIGEST, digest)

    def _new(self, request: Any, is_pull: bool) -> QueueState:
        state = self._state
        now_s = state.clock.now()
        if state.store.names.blocked_until(request.name) > now_s:
            raise errors.queue_too_recent()
        validation.check_queue(request)
        message = validation.complete_queue(request, is_pull)
        queue = state.new_queue(message, False, now_s, is_pull=is_pull)
        state.queues[request.name] = queue
        self._save(queue)
        return queue

    def _save(self, queue: QueueState) -> None:
        spec = queue.message.SerializeToString()
        self._state.store.queues.put(StoredQueue(queue.name, spec, queue.from_yaml, queue.is_pull))

    def get(self, name: str) -> Any:
        """Return a queue's message.

        Raises:
            Refused: NOT_FOUND.
        """
        with self._state.lock:
            return self._state.queue(name).message

    def is_pull(self, name: str) -> bool:
        """Return whether a queue's tasks are for leases, False if it is unknown."""
        with self._state.lock:
            queue = self._state.queues.get(name)
            return queue is not None and queue.is_pull

    def traits(self, name: str) -> Traits:
        """Return a queue's traits.

        Raises:
            Refused: NOT_FOUND.
        """
        with self._state.lock:
            queue, retention = self._state.queue(name), self._state.retention
            return Traits(queue.is_pull, retention.live_s(queue), retention.name_s(queue))

    def all(self) -> list[QueueState]:
        """Return the queues at work, by name."""
        with self._state.lock:
            return [queue for _, queue in sorted(self._state.queues.items())]

    def page(
        self,
        parent: str,
        query: str = "",
        size: int = 0,
        token: str = "",
        *,
        show: Callable[[QueueState], Any] = attrgetter("message"),
        queue_type: Any = messages.Queue,
    ) -> tuple[list[Any], str]:
        """Return a page of queue messages by name, and the next page's token.

        Args:
            show: Makes a queue's message, of the class `queue_type`, whose fields the query names.

        Raises:
            Refused: the filter or the token is not understood.
        """
        with self._state.lock:
            self._state.place.check_parent(parent)
            chosen, listing = QueueFilter(query, queue_type), f"queues:{parent}:{query}"
            start, limit = self._page_tokens.start(listing, size, token, MAX_QUEUES_PAGE)
            messages_shown = (
                show(queue)
                for queue in self.all()
                if queue.name > start and parent_of(queue.name) == parent
            )
            queues = [message for message in messages_shown if chosen.matches(message)]
            page = queues[:limit]
            has_more = len(queues) > limit
            return page, self._page_tokens.next(listing, page[-1].name) if has_more else ""

    def delete(self, name: str) -> None:
        """Delete a queue and its tasks; its name stays blocked for a while.

        Raises:
            Refused: NOT_FOUND.
        """
        state = self._state
        with state.change():
            state.place.check_queue_name(name)
            queue = state.queues.get(name)
            if queue is None:
                raise errors.entity_unknown()
            self._delete_tasks(queue)
            del state.queues[name]
            state.store.queues.delete(name)
            expires_at = state.clock.now() + state.retention.queue_tombstone_s
            state.store.names.block(name, expires_at)

    def purge(self, name: str) -> Any:
        """Delete all tasks of a queue; attempts in progress are not stopped."""
        with self._state.change():
            queue = self._state.queue(name)
            self._delete_tasks(queue)
            messages.set_seconds(queue.message.purge_time, self._state.clock.now())
            self._save(queue)
            return queue.message

    def _delete_tasks(self, queue: QueueState) -> None:
        queue.extras.clear()
        for task in [*queue.tasks.values()]:
            self._state.finish(queue, task, DELETED)

    def pause(self, name: str) -> Any:
        """Stop dispatching from a queue."""
        return self._set_state(name, messages.PAUSED)

    def resume(self, name: str) -> Any:
        """Dispatch from a queue again."""
        return self._set_state(name, messages.RUNNING)

    def _set_state(self, name: str, state: int) -> Any:
        with self._state.change():
            queue = self._state.queue(name)
            queue.message.state = state
            self._save(queue)
            return queue.message

    def restart(self, queue: QueueState) -> None:
        """Empty a queue and let it run, unless its rate is 0."""
        message = queue.message
        message.ClearField("purge_time")
        has_rate = message.rate_limits.max_dispatches_per_second > 0
        message.state = messages.RUNNING if has_rate else messages.PAUSED
        fresh = self._state.new_queue(
            message, queue.from_yaml, self._state.clock.now(), is_pull=queue.is_pull
        )
        self._state.queues[queue.name] = fresh
        self._save(fresh)
