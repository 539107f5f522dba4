"""Jobs declared by a decorator, as tasks and fork-join queues are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_type_hints

from pipelines.continuations.jobs import Job
from pipelines.continuations.sources import Source

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741  An item.

Effect = Literal["apply", "check", "side_effect"]


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
    """

    def declare(work: Callable[..., Any]) -> Job[Any, Any]:
        parameters = [key for key in work.__annotations__ if key != "return"]
        if len(parameters) < 2:
            raise TypeError(
                f"{work.__qualname__} needs (clients: Clients, args: <a dataclass>, ...)"
            )
        args = get_type_hints(work, localns={"Clients": Any})[parameters[1]]
        how: dict[str, Any] = {effect: work, **options}
        return Job(name, queue, args, source, **how)

    return declare
