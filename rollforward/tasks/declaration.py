"""Declared tasks: the path, the queue and the arguments of a function that Cloud Tasks calls."""

from __future__ import annotations

import datetime
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, get_type_hints

from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message
from rollforward.tasks.arguments import ArgumentsCodec
from rollforward.tasks.errors import BadArgumentsError, TooLargeError, UnknownTaskError

A = TypeVar("A")

MAX_DELAY_S = 30 * 24 * 3600
# The service's documents say 1 MB in one place and 100 KB for App Engine targets in another. It was
# seen to take 1,048,569 bytes of either, and so does the emulator: what is promised is the bound.
MAX_BODY_BYTES = 100_000
MAX_NAME_PARTS_BYTES = 2_000
_FORM = """declare a task in this form, with a dataclass of its arguments:
    @task(queue="default")
    def ship(clients: Clients, args: Ship) -> None: ..."""


@dataclass(frozen=True)
class Task(Generic[A]):
    """A declared task: where it is delivered, through which queue, and what it does.

    `max_attempts` deliveries may fail by the task's own fault (an unforeseen error, a
    worker that died) before it is kept as a dead task. The queue itself never gives up: a task
    that it dropped would leave no trace.

    With `on_give_up`, that function is called with the reason instead, and no dead task is kept.
    """

    path: str
    queue: str
    args: type[A]
    work: Callable[[Clients, A], object]  # What it returns is for the batch that it is a member of.
    max_attempts: int = 50
    on_give_up: Callable[[Clients, A, str], None] | None = None

    if not TYPE_CHECKING:  # A type checker says of itself that a task cannot be called.

        def __call__(self, *args: object, **options: object) -> NoReturn:
            raise TypeError(
                f"{self.function} is a task, which its queue calls: to have it run, use "
                ".enqueue(clients, args), or outbox.enqueue(clients, task, args) in a transaction"
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

    def enqueue(
        self,
        clients: Clients,
        args: A,
        *,
        name: Sequence[str | int] | None = None,
        delay_s: float = 0,
        at: datetime.datetime | None = None,
        max_attempts: int | None = None,
    ) -> bool:
        """Create one task.

        Args:
            name: What makes this task unique, in parts; a second one is not created.
            delay_s: Seconds from now, up to 30 days; or give `at`, an aware time.
            max_attempts: Lets Cloud Tasks drop the task after so many deliveries.

        Returns:
            True if this call created it, False if the name exists already.

        Raises:
            BadArgumentsError, TooLargeError, UnknownTaskError, UnknownQueueError: nothing was
                enqueued, and the text says what to do.
        """
        self.check_registered(clients)
        message = self.message(
            args, name=name, at=self.due(clients, delay_s, at), max_attempts=max_attempts
        )
        return clients.tasks.create(message)

    def enqueue_many(
        self,
        clients: Clients,
        many: Sequence[A],
        *,
        names: Sequence[Sequence[str | int]] | None = None,
        delay_s: float = 0,
    ) -> list[bool]:
        """Create a task for each of many arguments, 100 per call; results as of `enqueue`."""
        self.check_registered(clients)
        due = self.due(clients, delay_s, None)
        unnamed = [None] * len(many)
        all_names: Sequence[Sequence[str | int] | None] = unnamed if names is None else names
        messages = [
            self.message(args, name=name, at=due)
            for args, name in zip(many, all_names, strict=True)
        ]
        return clients.tasks.create_many(messages)

    def message(
        self,
        args: A,
        *,
        name: Sequence[str | int] | None = None,
        at: datetime.datetime | None = None,
        max_attempts: int | None = None,
    ) -> Message:
        """Return what would be sent, checked."""
        body = self._codec.dump(args)
        self._check_size(body)
        task_name = hashed_name(self.path, *name) if name is not None else None
        return Message(self.path, self.queue, body, task_name, at, max_attempts)

    def said(self, args: A) -> str:
        """Return what a caller has said by arguments: the same when a field is added to them.

        Fields that are as by default are left out.
        """
        return self._codec.said(args)

    @staticmethod
    def due(
        clients: Clients, delay_s: float, at: datetime.datetime | None
    ) -> datetime.datetime | None:
        """Return when a task is due: None for now, or an aware time, at most 30 days ahead."""
        if at is None and delay_s <= 0:
            return None
        now = clients.clock.now()
        due = at if at is not None else now + datetime.timedelta(seconds=delay_s)
        if due.tzinfo is None:
            raise BadArgumentsError("`at` must be an aware time")
        if (due - now).total_seconds() > MAX_DELAY_S:
            raise BadArgumentsError("a task may be scheduled at most 30 days ahead")
        return due

    def read(self, body: bytes) -> A:
        """Return the arguments in a body.

        Raises:
            TooLargeError: it is longer than a task may be.
            BadArgumentsError: it is not JSON, or not of this task's type.
        """
        self._check_size(body)
        return self._codec.read(body)

    def check_registered(self, clients: Clients) -> None:
        """Check that the app delivers this task.

        Raises:
            UnknownTaskError: no part of its registry brings it.
        """
        if clients.task_paths is not None and self.path not in clients.task_paths:
            raise UnknownTaskError(
                f"{self.path} is in no registry, so no delivery would find it: add what declares "
                f"it ({self.function}) to the app's Registry(...)"
            )

    def _check_size(self, body: bytes) -> None:
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError(f"{self.path}: {len(body)} bytes, at most {MAX_BODY_BYTES}")


def task(
    path: str | None = None, *, queue: str, max_attempts: int = 50
) -> Callable[[Callable[[Clients, A], object]], Task[A]]:
    """Declare the function below as a task; its second parameter's type is its arguments.

    Args:
        path: Where the task is delivered; by default /tasks/ and the function's name, with dashes.
        queue: A queue of queue.yaml.
        max_attempts: How often the task may fail by its own fault.

    Raises:
        ValueError: the path is not below /tasks/.
        TypeError: by the decorator, when the function has another form than a task's.
    """
    if path is not None and not path.startswith("/tasks/"):
        raise ValueError(f"a task's path starts with /tasks/, not {path!r}")

    def declare(work: Callable[[Clients, A], object]) -> Task[A]:
        args = _arguments_of(work)
        name = work.__name__.strip("_").replace("_", "-")
        return Task(path or f"/tasks/{name}", queue, args, work, max_attempts)

    return declare


def _arguments_of(work: Callable[[Clients, A], object]) -> type[A]:
    """Return the type of a function's second parameter.

    Raises:
        TypeError: the function does not have the form of a task.
    """
    name = getattr(work, "__qualname__", repr(work))
    parameters = list(inspect.signature(work).parameters.values())
    if any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters) or len(parameters) != 2:
        raise TypeError(f"{name} does not take (clients, args); {_FORM}")
    if inspect.iscoroutinefunction(work) or inspect.isgeneratorfunction(work):
        raise TypeError(f"{name} would not run when it is called; {_FORM}")
    last = parameters[1].name
    try:
        # Only the arguments are looked up: Clients is known to type checkers alone.
        args: Any = get_type_hints(work, localns={"Clients": Any}).get(last)
    except NameError as error:
        raise TypeError(
            f"{name}: {error.name} must be defined in its module, above the task; {_FORM}"
        ) from error
    is_fit = isinstance(args, type) and is_dataclass(args)
    if not is_fit:
        raise TypeError(f"{name}: the type of `{last}` is no dataclass; {_FORM}")
    return args  # type: ignore[no-any-return]


def hashed_name(*parts: str | int) -> str:
    """Return a task id for the parts; different parts give different ids.

    >>> hashed_name("page", "run-1", 2) == hashed_name("page", "run-1", 2)
    True
    >>> hashed_name("a", "11") == hashed_name("a1", "1")
    False
    """
    exact = json.dumps(parts, ensure_ascii=True).encode()
    if len(exact) > MAX_NAME_PARTS_BYTES:
        raise TooLargeError(f"a task's name has at most {MAX_NAME_PARTS_BYTES} bytes of parts")
    return hashlib.sha256(exact).hexdigest()[:40]
