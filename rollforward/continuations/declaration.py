"""Jobs declared by a decorator, as tasks and fork-join queues are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, Literal, TypeVar, get_type_hints

from rollforward.continuations.jobs import Job
from rollforward.continuations.sources import Source

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741  An item.

Effect = Literal["apply", "check", "side_effect"]

_FORM = """declare a job in this form, with a dataclass of its arguments:
    @job("ship", queue="default", source=lambda args: EntitySource(Order))
    def ship(clients: Clients, args: Ship, orders: Sequence[Order]) -> Sequence[None]: ..."""


def job(
    name: str,
    *,
    queue: str,
    source: Callable[[Any], Source[Any]],
    effect: Effect = "apply",
    **options: Any,
) -> Callable[[Callable[..., Any]], Job[Any, Any]]:
    """Declare the function below as a job; its second parameter's type is its arguments.

    Args:
        name: Of the job, in /tasks/continuations/<name>.
        source: What a run walks over, for its arguments.
        effect: Where the function acts: "apply" in Datastore, in the transaction that holds the
            receipts; "side_effect" outside, before they are committed; "check" nowhere.
        options: Other fields of `Job`: page_size, max_attempts, on_finished, ...

    Raises:
        TypeError: by the decorator, when the function has another form than a job's.
    """

    def declare(work: Callable[..., Any]) -> Job[Any, Any]:
        how: dict[str, Any] = {effect: work, **options}
        return Job(name, queue, _arguments_of(work), source, **how)

    return declare


def _arguments_of(work: Callable[..., Any]) -> type[Any]:
    """Return the type of a function's second parameter.

    Raises:
        TypeError: the function does not have the form of a job.
    """
    parameters = list(inspect.signature(work).parameters)
    if len(parameters) < 2:
        raise TypeError(f"{work.__qualname__} takes too little; {_FORM}")
    second = work.__annotations__.get(parameters[1])
    try:
        # Only the arguments are looked up: what else it names may be known to type checkers alone.
        args: Any = _looked_up(work, second) if isinstance(second, str) else second
    except NameError as error:
        raise TypeError(
            f"{work.__qualname__}: {error.name} must be defined in its module, above the job; "
            f"{_FORM}"
        ) from error
    if not (isinstance(args, type) and is_dataclass(args)):
        raise TypeError(
            f"{work.__qualname__}: the type of `{parameters[1]}` is no dataclass; {_FORM}"
        )
    return args


def _looked_up(work: Callable[..., Any], annotation: str) -> Any:
    unwrapped: Any = inspect.unwrap(work)
    kind = type("Kind", (), {"__annotations__": {"args": annotation}})
    return get_type_hints(kind, globalns=unwrapped.__globals__)["args"]
