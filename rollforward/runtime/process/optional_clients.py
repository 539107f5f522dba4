"""Calls whose clients may be left out: the current request or task has some.

The clients are the first argument still, so code that has them passes them on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from rollforward.runtime.process.current import current_clients
from rollforward.runtime.process.process_state import ProcessState

if TYPE_CHECKING:
    from rollforward.runtime.clients import Clients

P = ParamSpec("P")
Self_contra = TypeVar("Self_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Call(Protocol[P, R_co]):
    """A function with its clients, or without them."""

    @overload
    def __call__(self, clients: Clients, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Method(Protocol[Self_contra, P, R_co]):
    """A method of the same two forms."""

    def __get__(self, instance: Self_contra, owner: Any = None, /) -> Call[P, R_co]: ...


def optional_clients(
    method: Callable[Concatenate[Self_contra, Clients, P], R],
) -> Method[Self_contra, P, R]:
    """Let callers of a method leave its clients out."""

    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> R:
        if _has_clients(args, kwargs):
            return method(self, *args, **kwargs)
        return method(self, current_clients(), *args, **kwargs)

    call.has_optional_clients = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def function_with_optional_clients(function: Callable[Concatenate[Clients, P], R]) -> Call[P, R]:
    """Let callers of a function leave its clients out."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        if _has_clients(args, kwargs):
            return function(*args, **kwargs)
        return function(current_clients(), *args, **kwargs)

    call.has_optional_clients = True  # type: ignore[attr-defined]
    return call


def _has_clients(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return "clients" in kwargs or (bool(args) and are_clients(args[0]))


def are_clients(value: object) -> bool:
    """Return whether the first argument of a call is its clients.

    They need not be of the class: a search has clients of its own. An entity or a record may have
    a property of the same name.
    """
    return isinstance(getattr(value, "process_state", None), ProcessState)
