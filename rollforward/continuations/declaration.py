"""Jobs declared by a decorator, as tasks and fork-join queues are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, Literal, Protocol, TypeVar, get_type_hints, overload

from rollforward.continuations.jobs import (
    DEADLINE_S,
    LEASE_S,
    MAX_ATTEMPTS,
    PAGE_SIZE,
    RETRY_DELAYS_S,
    ApplyFunction,
    Job,
    SideEffectFunction,
)
from rollforward.continuations.sources import Source
from rollforward.runtime.clients import Clients

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741  An item.
I_co = TypeVar("I_co", covariant=True)

Effect = Literal["apply", "check", "side_effect"]

_FORM = """declare a job in this form, with a dataclass of its arguments:
    @job("ship", queue="default", source=lambda args: EntitySource(Order))
    def ship(clients: Clients, args: Ship, orders: Sequence[Order]) -> Sequence[None]: ..."""


class _Declare(Protocol[I_co]):
    """The decorator that `job(...)` returns."""

    @overload
    def __call__(self, work: ApplyFunction[A, I_co], /) -> Job[A, Any]: ...

    @overload
    def __call__(self, work: SideEffectFunction[A, I_co], /) -> Job[A, Any]: ...


def job(
    name: str,
    *,
    source: Callable[[Any], Source[I]],
    queue: str = "default",
    effect: Effect = "apply",
    on_finished: Callable[[Clients, Any], object] | None = None,
    page_size: int = PAGE_SIZE,
    max_attempts: int = MAX_ATTEMPTS,
    retry_delays_s: tuple[float, ...] = RETRY_DELAYS_S,
    lease_s: float = LEASE_S,
    deadline_s: float = DEADLINE_S,
) -> _Declare[I]:
    """Declare the function below as a job; its second parameter's type is its arguments.

    Args:
        name: Name of the job, in /tasks/continuations/<name>.
        source: Function from the arguments of a run to its source.
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
        TypeError: by the decorator, when the function has another form than a job's.
        ValueError: by the decorator, when a number is out of its bounds.
    """

    def declare(work: Callable[..., Any]) -> Job[Any, Any]:
        works: dict[str, Any] = {effect: work}
        return Job(
            name,
            queue,
            _arguments_of(work),
            source,
            on_finished=on_finished,
            page_size=page_size,
            max_attempts=max_attempts,
            retry_delays_s=retry_delays_s,
            lease_s=lease_s,
            deadline_s=deadline_s,
            **works,
        )

    return declare


def _arguments_of(work: Callable[..., Any]) -> type[Any]:
    """Return the type of a function's second parameter.

    Raises:
        TypeError: the function does not have the form of a job.
    """
    parameters = list(inspect.signature(work).parameters)
    if len(parameters) < 2:
        raise TypeError(f"{work.__qualname__} must accept (clients, args, items); {_FORM}")
    second = work.__annotations__.get(parameters[1])
    try:
        # Only the arguments are looked up: what else it names may be known to type checkers alone.
        args: Any = _resolve(work, second) if isinstance(second, str) else second
    except NameError as error:
        raise TypeError(
            f"{work.__qualname__}: {error.name} must be defined in its module, above the job; "
            f"{_FORM}"
        ) from error
    if not (isinstance(args, type) and is_dataclass(args)):
        raise TypeError(
            f"{work.__qualname__}: the type of `{parameters[1]}` must be a dataclass; {_FORM}"
        )
    return args


def _resolve(work: Callable[..., Any], annotation: str) -> Any:
    unwrapped: Any = inspect.unwrap(work)
    kind = type("Kind", (), {"__annotations__": {"args": annotation}})
    return get_type_hints(kind, globalns=unwrapped.__globals__)["args"]
