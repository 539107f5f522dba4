"""Jobs declared by a decorator, as tasks and fork-join queues are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, Protocol, TypeVar, get_type_hints, overload

from google.cloud import ndb

from rollforward.app_code import runs_when_called
from rollforward.continuations.jobs import (
    DEADLINE_S,
    LEASE_S,
    MAX_ATTEMPTS,
    PAGE_SIZE,
    RETRY_DELAYS_S,
    ApplyFunction,
    ItemErrors,
    Job,
    SideEffectFunction,
)
from rollforward.continuations.sources import Source
from rollforward.runtime.clients import Clients
from rollforward.tasks.parameters import declared_name, is_for_clients, without_clients

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741  An item.
I_co = TypeVar("I_co", covariant=True)

_PASSED_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
Effect = Literal["apply", "check", "side_effect"]

_FORM = """declare a job in this form; it may do without the clients, and without arguments:
    @job(source=lambda args: EntitySource(Order))
    def ship(clients: Clients, args: Ship, orders: Sequence[Order]) -> None: ..."""


@dataclass(frozen=True)
class NoArguments:
    """Arguments of a job that has none."""


class _Declare(Protocol[I_co]):
    """The decorator that `job(...)` returns."""

    @overload
    def __call__(self, work: ApplyFunction[A, I_co], /) -> Job[A, Any]: ...

    @overload
    def __call__(
        self, work: Callable[[Clients, Sequence[I_co]], ItemErrors], /
    ) -> Job[NoArguments, Any]: ...

    @overload
    def __call__(self, work: Callable[[A, Sequence[I_co]], ItemErrors], /) -> Job[A, Any]: ...

    @overload
    def __call__(
        self, work: Callable[[Sequence[I_co]], ItemErrors], /
    ) -> Job[NoArguments, Any]: ...

    @overload
    def __call__(self, work: SideEffectFunction[A, I_co], /) -> Job[A, Any]: ...

    @overload
    def __call__(
        self, work: Callable[[Clients], AbstractContextManager[Callable[[I_co], None]]], /
    ) -> Job[NoArguments, Any]: ...


def job(
    name: str | None = None,
    *,
    source: Source[I] | Callable[[Any], Source[I]],
    queue: str = "default",
    effect: Effect = "apply",
    on_finished: Callable[[Clients, Any], object] | None = None,
    page_size: int = PAGE_SIZE,
    max_attempts: int = MAX_ATTEMPTS,
    retry_delays_s: tuple[float, ...] = RETRY_DELAYS_S,
    lease_s: float = LEASE_S,
    deadline_s: float = DEADLINE_S,
) -> _Declare[I]:
    """Declare the function below as a job, whose parameters are `clients`, `args` and the items.

    Each of the first two may be left out. The type of `args` is a dataclass.

    Args:
        name: Name of the job, in /tasks/continuations/<name>; default: the function's, with dashes.
        source: A source, or a function from the arguments of a run to its source.
        queue: A queue of queue.yaml.
        effect: Place of the effects: "apply" in Datastore, in the transaction that holds the
            receipts; "side_effect" outside, before they are committed; "check" nowhere.
        on_finished: Called with the arguments of a run that has ended: at least once, maybe late.
        page_size: How many items a task works on, 1 to 1,000.
        max_attempts: Passes over a page, before an item that is deferred each time has failed.
        retry_delays_s: Between passes; the last one repeats.
        lease_s: How long a page waits for an attempt that has died, up to a day.
        deadline_s: How long an attempt may keep its page, up to a day.

    Raises:
        TypeError: the source is a class of entities; or, by the decorator, when the function has
            another form than a job's.
        ValueError: by the decorator, when a number is out of its bounds.
    """

    if isinstance(source, type) and issubclass(source, ndb.Model):
        kind = source.__name__
        raise TypeError(f"source must be EntitySource({kind}), got the class {kind}")

    def declare(work: Callable[..., Any]) -> Job[Any, Any]:
        args, function = _form_of(work, has_items=effect != "side_effect")
        works: dict[str, Any] = {effect: function}
        return Job(
            name or declared_name(work),
            queue,
            args,
            source if callable(source) else lambda args: source,
            on_finished=on_finished,
            page_size=page_size,
            max_attempts=max_attempts,
            retry_delays_s=retry_delays_s,
            lease_s=lease_s,
            deadline_s=deadline_s,
            **works,
        )

    return declare


def _form_of(work: Callable[..., Any], *, has_items: bool) -> tuple[type[Any], Callable[..., Any]]:
    """Return the type of a job's arguments, and the function that takes all there can be.

    Raises:
        TypeError: the function does not have the form of a job.
    """
    if inspect.iscoroutinefunction(work) or not (has_items or runs_when_called(work)):
        raise TypeError(
            f"{work.__qualname__} must be a plain function: called, it would not run; {_FORM}"
        )
    parameters = inspect.signature(work).parameters.values()
    leading = [each.name for each in parameters if each.kind in _PASSED_BY_POSITION]
    if has_items:
        items = leading.pop() if leading else ""
        # Their type is not looked up: it may be known to type checkers alone.
        declared = work.__annotations__.get(items)
        kind = Clients if declared == "Clients" else declared
        if not items or (items != "_" and is_for_clients(items, kind)):
            raise TypeError(f"{work.__qualname__} must accept its items; {_FORM}")
    function = work
    if leading and is_for_clients(leading[0], _kind_of(work, leading[0])):
        leading.pop(0)
    else:
        function = without_clients(function)
    if not leading:
        return NoArguments, _without_arguments(function)
    args = _kind_of(work, leading[0])
    if len(leading) > 1 or not (isinstance(args, type) and is_dataclass(args)):
        raise TypeError(
            f"{work.__qualname__}: the type of `{leading[0]}` must be a dataclass, and no other "
            f"parameter be between the clients and the items; {_FORM}"
        )
    return args, function


def _without_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def work(clients: Clients, _args: NoArguments, *items: Any) -> Any:
        return function(clients, *items)

    return work


def _kind_of(work: Callable[..., Any], parameter: str) -> Any:
    """Return the type of a parameter; None: it has none."""
    unwrapped: Any = inspect.unwrap(work)
    declared = work.__annotations__.get(parameter)
    if not isinstance(declared, str):
        return declared
    kind = type("Kind", (), {"__annotations__": {"args": declared}})
    try:
        hints = get_type_hints(kind, globalns=unwrapped.__globals__, localns={"Clients": Clients})
    except NameError as error:
        raise TypeError(
            f"{work.__qualname__}: {error.name} must be defined in its module, above the job; "
            f"{_FORM}"
        ) from error
    return hints["args"]
