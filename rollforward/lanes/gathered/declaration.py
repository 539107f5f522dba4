"""Declared lanes that gather calls: debounced, throttled, and unique ones."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, overload

from rollforward.datastore.contexts import refuse_other_namespace
from rollforward.datastore.transactions import current_transaction, is_in_transaction, transact
from rollforward.lanes import adding
from rollforward.lanes.declaration import Lane
from rollforward.lanes.gathered import replays, running
from rollforward.lanes.gathered.calls import Call, form_of
from rollforward.lanes.gathered.timing import MAX_WAIT_S, Debounce, Throttle, Timing, Unique
from rollforward.lanes.gathered.window import Window, place_in_key, time_at
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneState, LaneTask, state_key, time_of
from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message
from rollforward.tasks.arguments import ArgumentsCodec
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import TooLargeError
from rollforward.tasks.parameters import with_clients
from rollforward.tasks.stored.names import MAX_BODY_BYTES
from rollforward.tasks.times import check_max_attempts
from rollforward.tracing import trace_headers

A = TypeVar("A")


class Gathered(Lane, Generic[A]):
    """A lane that gathers the calls of a key, and runs a function once with all of them.

    `rf.lanes.debounced`, `throttled` and `unique` declare it. An app registers it like a task:
    `rf.serve(app, digest)`.
    """

    def __init__(
        self,
        name: str,
        timing: Timing,
        function: Callable[..., object],
        *,
        queue: str = "default",
        max_attempts: int = 50,
        deadline_s: int = 600,
    ) -> None:
        """Declare a lane that gathers.

        Args:
            name: Stands in keys and routes: never change it while calls wait.
            timing: When a window ends.
            function: Takes a key and the calls of its window; the clients first, if it wants them.
            queue: A queue of queue.yaml, which delivers the runs.
            max_attempts: How many runs of a window may fail before its calls become a dead task.
            deadline_s: Seconds that a run may take, 15 to 1,800.

        Raises:
            ValueError: the declaration is invalid.
            TypeError: the function has another form.
        """
        check_max_attempts(max_attempts)
        super().__init__(name, queue=queue, order=True, deadline_s=deadline_s)
        self.timing = timing
        self.max_attempts = max_attempts
        self.args, self.work = form_of(function)
        self.path = f"/tasks/lanes/{name}/calls"
        self.task = Task(
            *(self.task.path, queue, LaneArgs, partial(running.deliver, self)),
            deadline_s=deadline_s,
        )
        self.replay_task = Task(self.path, queue, replays.DeadCalls, partial(replays.replay, self))

    if not TYPE_CHECKING:  # A type checker says of itself that it cannot be called.

        def __call__(self, *args: object, **options: object) -> NoReturn:
            raise TypeError(
                f"{self.name} gathers calls, which its queue runs: to add one, write "
                '.call("key", args); other tasks cannot wait in it'
            )

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        return [self.task, self.replay_task]

    @cached_property
    def codec(self) -> ArgumentsCodec[A]:
        """Writes the arguments of calls as JSON, and reads them."""
        return ArgumentsCodec(self.path, self.args)

    @overload
    def call(self, clients: Clients, key: str | int, args: A, /) -> bool: ...

    @overload
    def call(self, key: str | int, args: A, /) -> bool: ...

    def call(self, /, *args: Any) -> bool:
        """Add a call to the window of a key: alone, or by the commit of this code's transaction.

        Args:
            clients: What adds it; default those of the request or task that runs now.
            key: What is gathered by: a user, a repository.
            args: The arguments of the call, at most 100,000 bytes as JSON.

        Returns:
            True: a run that begins later gets it, when it is committed. False: it was dropped,
            because a run of its key is at work (`unique` with `while_running`).

        Raises:
            BadLaneError, BadArgumentsError, TooLargeError, UnknownTaskError, NoClientsError:
                nothing was added, and the text says what to do.
        """
        clients, (key, value) = with_clients(args, 2, f"{self.path} takes a key and arguments")
        refuse_other_namespace(f"the lane {self.name}, which gathers calls,")
        self.task.check_registered(clients)
        lane_id = super().__call__(key).id
        message = self._message(value)
        if is_in_transaction():
            return self._call_in_transaction(clients, lane_id, message)
        if self.timing.is_dropped_while_running:
            return transact(lambda: self._call_in_transaction(clients, lane_id, message))
        after_s = self.timing.first_s
        adding.add(clients, self.task, lane_id, [message], is_ordered=True, after_s=after_s)
        return True

    def due_at(self, task: LaneTask, state: LaneState | None) -> datetime.datetime:
        """Return when the window of a key ends at the earliest, by its first call."""
        window, called = Window.of(state), time_of(task.key.id())
        if window.calls:
            return time_at(window.not_before_ms)
        if place_in_key(task.key.id()) <= window.rest_until:
            return called
        return self.timing.due(called, called, window.began)

    def _message(self, args: A) -> Message:
        body = self.codec.dump(args)
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError(
                f"{self.path}: a call must have at most {MAX_BODY_BYTES} bytes, got {len(body)}"
            )
        return Message(self.path, self.queue, body, headers=trace_headers())

    def _call_in_transaction(self, clients: Clients, lane_id: str, message: Message) -> bool:
        transaction = current_transaction()
        if self.timing.is_dropped_while_running:
            # Read in the transaction: a run that begins meanwhile makes it run again.
            state: LaneState | None = state_key(lane_id).get()
            window = Window.of(state)
            if transaction.doubt is not None and window.has_call_of(transaction.id):
                return True  # It was committed, and its run is at work.
            if window.calls:
                return False
        adding.add_in_transaction(
            *(clients, self.task, lane_id, message),
            is_ordered=True,
            after_s=self.timing.first_s,
        )
        return True


class _Declare(Protocol):
    """The decorator that `debounced(...)` and its like return."""

    @overload
    def __call__(
        self, function: Callable[[Clients, str, Sequence[Call[A]]], object], /
    ) -> Gathered[A]: ...

    @overload
    def __call__(self, function: Callable[[str, Sequence[Call[A]]], object], /) -> Gathered[A]: ...


def debounced(
    name: str,
    *,
    wait_s: float,
    max_s: float | None = None,
    queue: str = "default",
    max_attempts: int = 50,
    deadline_s: int = 600,
) -> _Declare:
    """Declare the function below: it runs when a key has had no call for `wait_s` seconds.

        @rf.lanes.debounced("digest", wait_s=30, max_s=600)
        def digest(user: str, calls: Sequence[Call[NewPost]]) -> None: ...

    Args:
        max_s: Seconds after the first call at which it runs at the latest; default ten waits, a
            week at most.

    Raises:
        ValueError: as of `Gathered`, like the other arguments.
    """
    timing = Debounce(wait_s, min(10 * wait_s, MAX_WAIT_S) if max_s is None else max_s)
    return partial(
        Gathered, name, timing, queue=queue, max_attempts=max_attempts, deadline_s=deadline_s
    )


def throttled(
    name: str,
    *,
    every_s: float,
    queue: str = "default",
    max_attempts: int = 50,
    deadline_s: int = 600,
) -> _Declare:
    """Declare the function below: for a key it begins at most once in `every_s` seconds.

        @rf.lanes.throttled("reindex", every_s=60)
        def reindex(repository: str, calls: Sequence[Call[Push]]) -> None: ...

    A call after a rest runs at once. Later ones wait together for the next time.

    Raises:
        ValueError: as of `Gathered`, like the other arguments.
    """
    timing = Throttle(every_s)
    return partial(
        Gathered, name, timing, queue=queue, max_attempts=max_attempts, deadline_s=deadline_s
    )


def unique(
    name: str,
    *,
    while_running: bool,
    queue: str = "default",
    max_attempts: int = 50,
    deadline_s: int = 600,
) -> _Declare:
    """Declare the function below: at most one run of a key is queued, and one at work.

        @rf.lanes.unique("sync", while_running=False)
        def sync(account: str, calls: Sequence[Call[Changed]]) -> None: ...

    Calls join the run that is queued.

    Args:
        while_running: Whether a call during a run is dropped, and answered False. Otherwise calls
            during a run cause one more.

    Raises:
        ValueError: as of `Gathered`, like the other arguments.
    """
    timing = Unique(is_dropped_while_running=while_running)
    return partial(
        Gathered, name, timing, queue=queue, max_attempts=max_attempts, deadline_s=deadline_s
    )
