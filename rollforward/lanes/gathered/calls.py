"""Calls: what is gathered, and what the function of a gathering lane gets."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin

from rollforward.lanes.gathered.window import place_in_key
from rollforward.lanes.rows.entities import LaneTask, time_of
from rollforward.runtime.clients import Clients
from rollforward.tasks.arguments import ArgumentsCodec
from rollforward.tasks.parameters import check_plain, hints_of, without_clients

A = TypeVar("A")
Run = Callable[[Clients, str, Sequence["Call[Any]"]], object]

_FORM = """declare it in one of these forms, with a dataclass of the arguments of a call:
    def digest(user: str, calls: Sequence[Call[NewPost]]) -> None: ...
    def digest(clients: Clients, user: str, calls: Sequence[Call[NewPost]]) -> None: ..."""


@dataclass(frozen=True)
class Call(Generic[A]):
    """A call that was gathered.

    Attributes:
        args: Its arguments.
        at: When it was made, by the clock of its caller, or behind the call before it; aware.
        id: Unique among the calls of its key, and the same in each run. That of a run's first call
            names the run, as an idempotency key.
    """

    args: A
    at: datetime.datetime
    id: str


def call_of(row: LaneTask, codec: ArgumentsCodec[A]) -> Call[A]:
    """Return the call of a row.

    Raises:
        BadArgumentsError: its arguments are of another form.
    """
    task_id = row.key.id()
    return Call(codec.read(row.body.encode()), time_of(task_id), place_in_key(task_id))


def form_of(function: Callable[..., object]) -> tuple[type[Any], Run]:
    """Return the type of the arguments of a call, and the work that takes a key and calls.

    Raises:
        TypeError: the function does not have the form.
    """
    name = check_plain(function, _FORM)
    parameters = list(inspect.signature(function).parameters)
    hints = hints_of(function, f"it; {_FORM}")
    takes_clients = bool(parameters) and hints.get(parameters[0]) is Clients
    if len(parameters) != 2 + takes_clients:
        raise TypeError(f"{name} must take a key and calls; {_FORM}")
    key, calls = parameters[-2:]
    if hints.get(key) is not str:
        raise TypeError(f"{name}: `{key}` must be a str; {_FORM}")
    args = _arguments(hints.get(calls))
    if args is None:
        raise TypeError(f"{name}: `{calls}` must be a Sequence[Call[...]]; {_FORM}")
    return args, function if takes_clients else without_clients(function)


def _arguments(calls: Any) -> type[Any] | None:
    """Return the dataclass of arguments in the type of a sequence of calls; None: it has none."""
    items = get_args(calls)
    if len(items) != 1 or get_origin(items[0]) is not Call:
        return None
    [args] = get_args(items[0])
    return args if isinstance(args, type) and dataclasses.is_dataclass(args) else None
