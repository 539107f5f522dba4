"""Deferred calls: a function that a task calls, with the arguments of an ordinary call.

    @deferrable(queue="default")
    def greet(clients: Clients, name: str, *, times: int = 1) -> None: ...

    defer(clients, greet, "Ada", times=2)

The function is registered with the app, and found by its path. Its arguments travel as JSON and are
checked against its signature when they are given and when they arrive. Nothing is pickled, and
nothing is imported by a name that a task holds.

Source: D. Hermes, "Last to cross the finish line: part three", 2012, after App Engine's `deferred`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from rollforward import outbox
from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import BadArgumentsError


@dataclass(frozen=True)
class Deferrable(Task[Any]):
    """A function that can be deferred: a declared task, whose arguments are the function's own."""

    signature: inspect.Signature = field(default_factory=inspect.Signature, compare=False)

    def args_of(self, *args: Any, **options: Any) -> Any:
        """Return the arguments of a call, checked.

        Raises:
            BadArgumentsError: the function takes no such arguments.
        """
        try:
            bound = self.signature.bind(*args, **options)
        except TypeError as error:
            raise BadArgumentsError(f"{self.function}: {error}") from error
        return self.args(**bound.arguments)

    def member(self, *args: Any, **options: Any) -> tuple[Task[Any], Any]:
        """Return a call as a member of a batch, for `populate`."""
        return self, self.args_of(*args, **options)


def deferrable(
    path: str | None = None, *, queue: str, max_attempts: int = 50
) -> Callable[[Callable[..., object]], Deferrable]:
    """Let the function below be deferred; its first parameter gets the clients.

    Args:
        path: Where its task is delivered; by default /tasks/deferred/ and the function's name.
        queue: A queue of queue.yaml.
        max_attempts: How often it may fail by its own fault.

    Raises:
        TypeError: by the decorator, when a parameter has no type, or takes any number of arguments.
    """

    def declare(function: Callable[..., object]) -> Deferrable:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        hints = get_type_hints(function, localns={"Clients": Any})
        fields = [_field(function, parameter, hints) for parameter in parameters]
        args = dataclasses.make_dataclass("Arguments", fields, frozen=True, kw_only=True)

        def work(clients: Clients, call: Any) -> object:
            given = {each.name: getattr(call, each.name) for each in parameters}
            bound = inspect.Signature(parameters).bind_partial()
            bound.arguments.update(given)
            return function(clients, *bound.args, **bound.kwargs)

        work.__module__, work.__qualname__ = function.__module__, function.__qualname__
        name = function.__name__.strip("_").replace("_", "-")
        return Deferrable(
            path or f"/tasks/deferred/{name}",
            queue,
            args,
            work,
            max_attempts,
            signature=inspect.Signature(parameters),
        )

    return declare


def defer(
    clients: Clients, function: Deferrable, /, *args: Any, delay_s: float = 0, **options: Any
) -> None:
    """Have a function called by a task, with these arguments.

    Args:
        delay_s: Seconds from now, up to 30 days.

    Raises:
        BadArgumentsError, TooLargeError: nothing was enqueued.
    """
    function.enqueue(clients, function.args_of(*args, **options), delay_s=delay_s)


def defer_in_transaction(
    clients: Clients, function: Deferrable, /, *args: Any, delay_s: float = 0, **options: Any
) -> None:
    """Do the same if, and only if, the transaction that this code runs in is committed.

    Raises:
        NoTransactionError: this is not the body of `transact`.
        BadArgumentsError, TooLargeError: nothing was enqueued.
    """
    outbox.enqueue(clients, function, function.args_of(*args, **options), delay_s=delay_s)


def _field(
    function: Callable[..., object], parameter: inspect.Parameter, hints: dict[str, Any]
) -> tuple[str, Any, Any]:
    where = f"{function.__qualname__}, {parameter.name}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"{where}: a deferred function names each of its parameters")
    if parameter.name not in hints:
        raise TypeError(f"{where}: give it a type, by which what arrives is checked")
    if parameter.default is parameter.empty:
        return parameter.name, hints[parameter.name], field()
    return parameter.name, hints[parameter.name], field(default=parameter.default)
