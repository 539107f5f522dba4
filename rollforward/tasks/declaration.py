"""Declared tasks: the path, the queue and the arguments of a function that Cloud Tasks calls."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message, MessageLane
from rollforward.tasks.arguments import ArgumentsCodec
from rollforward.tasks.errors import (
    MAX_DELAY_S,
    BadArgumentsError,
    TooLargeError,
    UnknownTaskError,
)
from rollforward.tasks.parameters import (
    Parameters,
    bound,
    bound_call,
    check_options,
    declared_name,
    form_of,
    lane_key,
    with_clients,
)
from rollforward.tasks.stored.arguments import with_large_arguments
from rollforward.tasks.stored.distant import MAX_AHEAD_S, create_distant, is_distant
from rollforward.tasks.stored.names import MAX_ARGUMENTS_BYTES, MAX_BODY_BYTES, MAX_TASK_BYTES
from rollforward.tasks.stored.names import hashed_name as hashed_name
from rollforward.tasks.times import check_deadline, check_max_attempts, due_at
from rollforward.tracing import trace_headers

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

A = TypeVar("A")
P = ParamSpec("P")
D = TypeVar("D", bound="DataclassInstance")

# An app gets what is before ? and #, with %20 as a blank, Cloud Tasks refuses blanks, and Flask
# answers /tasks//a by a redirect.
_ARRIVES = re.compile(r"/tasks/[^\s?#%/][^\s?#%]*")


@dataclass(frozen=True)
class Task(Generic[A]):
    """A declared task: its path, its queue and its function.

    `max_attempts` deliveries may fail by the task's own fault (an unforeseen error, a
    worker that died) before it is kept as a dead task. The queue itself never gives up: a task
    that it dropped would leave no trace.

    A delivery that outlasts `deadline_s` counts as failed, and another one begins: None is the
    queue's own, ten minutes.

    With `on_give_up`, that function is called with the reason instead, and no dead task is kept.
    """

    path: str
    queue: str
    args: type[A]
    work: Callable[[Clients, A], object]  # What it returns is for the batch that it is a member of.
    max_attempts: int = 50
    on_give_up: Callable[[Clients, A, str], None] | None = None
    deadline_s: int | None = None

    if not TYPE_CHECKING:  # A type checker says of itself that a task cannot be called.

        def __call__(self, *args: object, **options: object) -> NoReturn:
            raise TypeError(
                f"{self.function} is a task, which its queue calls: to have it run, write "
                ".enqueue(...) with its arguments, or rf.enqueue(task, args) in a transaction"
            )

    @property
    def function(self) -> str:
        """The name of the function that does the work, with its module."""
        work: Any = getattr(self.work, "func", self.work)  # Of a functools.partial.
        work = work if hasattr(work, "__qualname__") else type(work)
        return f"{work.__module__}.{work.__qualname__}"

    @cached_property
    def _codec(self) -> ArgumentsCodec[A]:
        return ArgumentsCodec(self.path, self.args)

    @overload
    def enqueue(
        self,
        clients: Clients,
        args: A,
        /,
        *,
        name: Sequence[str | int] | None = None,
        delay_s: float = 0,
        at: datetime.datetime | None = None,
        max_attempts: int | None = None,
        lane: MessageLane | None = None,
    ) -> bool: ...

    @overload
    def enqueue(
        self,
        args: A,
        /,
        *,
        name: Sequence[str | int] | None = None,
        delay_s: float = 0,
        at: datetime.datetime | None = None,
        max_attempts: int | None = None,
        lane: MessageLane | None = None,
    ) -> bool: ...

    @overload
    def enqueue(
        self: Task[Parameters[P]], clients: Clients, /, *args: P.args, **options: P.kwargs
    ) -> bool: ...

    @overload
    def enqueue(self: Task[Parameters[P]], /, *args: P.args, **options: P.kwargs) -> bool: ...

    def enqueue(self, /, *args: Any, **options: Any) -> bool:
        """Create one task: of a dataclass of arguments, of a bound call, or of a call's arguments.

        The first two take options: `greet.enqueue(greet.bind("Ada"), delay_s=60)`.

        Args:
            clients: What creates it; default those of the request or task that runs now.
            name: Parts of a unique name; a second task of this name is not created.
            delay_s: Seconds from now, up to ten years; or give `at`, an aware time.
            max_attempts: Deliveries after which Cloud Tasks drops the task.
            lane: Key of a lane in which it waits for its turn: `lane=BY_USER("ada")`.

        Returns:
            True if this call created it, False if the name exists already.

        Raises:
            BadArgumentsError, TooLargeError, UnknownTaskError, UnknownQueueError, NoClientsError:
                nothing was enqueued, and the text says what to do.
        """
        form = f"{self.path} takes one {self.args.__name__}"
        clients, args = with_clients(args, None if issubclass(self.args, Parameters) else 1, form)
        is_bound = len(args) == 1 and isinstance(args[0], self.args)
        if issubclass(self.args, Parameters) and not is_bound:
            args, options = (bound_call(self.args, self.path, args, options),), {}
        check_options(self.path, options)
        return self._enqueue(clients, *args, **options)

    def _enqueue(
        self,
        clients: Clients,
        args: A,
        *,
        name: Sequence[str | int] | None = None,
        delay_s: float = 0,
        at: datetime.datetime | None = None,
        max_attempts: int | None = None,
        lane: MessageLane | None = None,
    ) -> bool:
        self.check_registered(clients)
        due = self.due(clients, delay_s, at, max_s=MAX_AHEAD_S)
        if lane is not None:
            lane_key(lane).add(clients, [self._waiting(args, name, due, max_attempts)])
            return True
        message = self._sendable(clients, args, name, due, max_attempts)
        if is_distant(clients, due):
            return create_distant(clients, message)
        return clients.tasks.create(message)

    def bind(self: Task[Parameters[P]], /, *args: P.args, **options: P.kwargs) -> Parameters[P]:
        """Return the arguments of a call as one value: for `outbox.enqueue`, batches and so on.

        Raises:
            BadArgumentsError: the function has other parameters.
        """
        if not issubclass(self.args, Parameters):
            raise TypeError(f"{self.path} takes one {self.args.__name__}, which needs no bind()")
        return bound(self.args, self.path, args, options)

    @overload
    def enqueue_many(
        self,
        clients: Clients,
        many: Sequence[A],
        /,
        *,
        names: Sequence[Sequence[str | int]] | None = None,
        delay_s: float = 0,
        lane: MessageLane | None = None,
    ) -> list[bool]: ...

    @overload
    def enqueue_many(
        self,
        many: Sequence[A],
        /,
        *,
        names: Sequence[Sequence[str | int]] | None = None,
        delay_s: float = 0,
        lane: MessageLane | None = None,
    ) -> list[bool]: ...

    def enqueue_many(
        self,
        /,
        *args: Any,
        names: Sequence[Sequence[str | int]] | None = None,
        delay_s: float = 0,
        lane: MessageLane | None = None,
    ) -> list[bool]:
        """Create a task for each of many arguments, 100 per call; results as of `enqueue`.

        In a lane they wait in their order, 400 per commit.
        """
        clients: Clients
        clients, (many,) = with_clients(args, 1, f"{self.path}: enqueue_many takes one list")
        self.check_registered(clients)
        due = self.due(clients, delay_s, None, max_s=MAX_AHEAD_S)
        unnamed = [None] * len(many)
        all_names: Sequence[Sequence[str | int] | None] = unnamed if names is None else names
        if lane is not None:
            pairs = zip(many, all_names, strict=True)
            lane_key(lane).add(clients, [self._waiting(args, name, due) for args, name in pairs])
            return [True] * len(many)
        messages = [
            self._sendable(clients, args, name, due)
            for args, name in zip(many, all_names, strict=True)
        ]
        if is_distant(clients, due):
            return [create_distant(clients, message) for message in messages]
        return clients.tasks.create_many(messages)

    def message(
        self,
        args: A,
        *,
        name: Sequence[str | int] | None = None,
        at: datetime.datetime | None = None,
        max_attempts: int | None = None,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> Message:
        """Return what would be sent, checked.

        Args:
            max_bytes: The most that its body may have; default as many as a row carries.
        """
        if max_attempts is not None:
            check_max_attempts(max_attempts, BadArgumentsError)
        body = self._codec.dump(args)
        self._check_size(body, max_bytes)
        task_name = hashed_name(self.path, *name) if name is not None else None
        return Message(
            *(self.path, self.queue, body, task_name, at, max_attempts),
            headers=trace_headers(),
            deadline_s=self.deadline_s,
        )

    def _waiting(
        self,
        args: A,
        name: Sequence[str | int] | None,
        due: datetime.datetime | None,
        max_attempts: int | None = None,
    ) -> Message:
        """Return what waits in a lane."""
        return self.message(
            args, name=name, at=due, max_attempts=max_attempts, max_bytes=MAX_ARGUMENTS_BYTES
        )

    def _sendable(
        self,
        clients: Clients,
        args: A,
        name: Sequence[str | int] | None,
        at: datetime.datetime | None,
        max_attempts: int | None = None,
    ) -> Message:
        """Return what to send now; arguments beyond a task's size are in rows then."""
        message = self.message(
            args, name=name, at=at, max_attempts=max_attempts, max_bytes=MAX_ARGUMENTS_BYTES
        )
        most_bytes = MAX_BODY_BYTES if is_distant(clients, at) else MAX_TASK_BYTES
        return with_large_arguments(clients, message, most_bytes=most_bytes)

    def args_json(self, args: A) -> str:
        """Return arguments as JSON that stays the same when a field is added to them.

        Fields that are as by default are left out.
        """
        return self._codec.args_json(args)

    @staticmethod
    def due(
        clients: Clients,
        delay_s: float,
        at: datetime.datetime | None,
        *,
        max_s: float = MAX_DELAY_S,
    ) -> datetime.datetime | None:
        """Return when a task is due: None for now, or an aware time, at most so far ahead."""
        return due_at(clients.clock.now(), delay_s, at, max_s)

    def read(self, body: bytes) -> A:
        """Return the arguments in a body.

        Raises:
            TooLargeError: it is longer than a task may be.
            BadArgumentsError: it is not JSON, or not of this task's type.
        """
        self._check_size(body, MAX_ARGUMENTS_BYTES)
        return self._codec.read(body)

    def check_registered(self, clients: Clients) -> None:
        """Check that the app delivers this task.

        Raises:
            UnknownTaskError: no part of its registry brings it.
        """
        if clients.task_paths is not None and self.path not in clients.task_paths:
            raise UnknownTaskError.of(self.path, self.function)

    def _check_size(self, body: bytes, max_bytes: int) -> None:
        if len(body) > max_bytes:
            raise TooLargeError(
                f"{self.path}: body must have at most {max_bytes} bytes, got {len(body)}"
            )


def deadline_of(clients: Clients, path: str) -> int | None:
    """Return the deadline that the app's task of a path declares; None: it declares none.

    For a message whose row was stored without it: by another version, or as a dead task.
    """
    known = clients.task_paths
    declared = known.get(path) if isinstance(known, Mapping) else None
    return declared.deadline_s if isinstance(declared, Task) else None


def queue_of(tasks: object, path: str) -> str | None:
    """Return the queue that the app's task of a path declares; None: it declares none.

    For a stored message whose queue does not exist: it was renamed since.

    Args:
        tasks: The tasks of the app by path.
    """
    declared = tasks.get(path) if isinstance(tasks, Mapping) else None
    return declared.queue if isinstance(declared, Task) else None


class _Declare(Protocol):
    """The decorator that `task(...)` returns."""

    @overload
    def __call__(self, function: Callable[[Clients, D], object], /) -> Task[D]: ...

    @overload  # `Clients` is a dataclass itself, and no argument.
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Clients, P], object], /
    ) -> Task[Parameters[P]]: ...

    @overload
    def __call__(self, function: Callable[[D], object], /) -> Task[D]: ...

    @overload
    def __call__(self, function: Callable[P, object], /) -> Task[Parameters[P]]: ...


@overload
def task(function: Callable[[Clients, D], object], /) -> Task[D]: ...


@overload
def task(  # type: ignore[overload-overlap]  # As above.
    function: Callable[Concatenate[Clients, P], object], /
) -> Task[Parameters[P]]: ...


@overload
def task(function: Callable[[D], object], /) -> Task[D]: ...


@overload
def task(function: Callable[P, object], /) -> Task[Parameters[P]]: ...


@overload
def task(
    path: str | None = None,
    *,
    queue: str = "default",
    max_attempts: int = 50,
    deadline_s: int | None = None,
) -> _Declare: ...


def task(
    path: Any = None,
    *,
    queue: str = "default",
    max_attempts: int = 50,
    deadline_s: int | None = None,
) -> Any:
    """Declare the function below as a task: `@task`, or `@task(queue=...)`.

    Its parameters are the task's arguments, or one dataclass of them. A first parameter of the type
    `Clients` gets the clients.

    Args:
        path: URL path of its deliveries; default /tasks/ and the function's name, with dashes.
        queue: A queue of queue.yaml.
        max_attempts: How often the task may fail by its own fault.
        deadline_s: Seconds that a delivery may take, 15 to 1,800; default 600.

    Raises:
        ValueError: the path is not below /tasks/, or would not arrive as it is, or a number is out
            of its bounds.
        TypeError: by the decorator, when the function has another form than a task's.
    """
    if callable(path):
        return task()(path)
    if path is not None and not path.startswith("/tasks/"):
        raise ValueError(f"path must start with /tasks/, got {path!r}")
    if path is not None and not _ARRIVES.fullmatch(path):
        raise ValueError(f"path must have no blank, ?, # or %, and a name at /tasks/, got {path!r}")
    check_max_attempts(max_attempts)
    if deadline_s is not None:
        check_deadline(deadline_s)

    def declare(function: Callable[..., object]) -> Task[Any]:
        args, work = form_of(function)
        own_path = path or f"/tasks/{declared_name(function)}"
        return Task(own_path, queue, args, work, max_attempts, deadline_s=deadline_s)

    return declare
