"""Declared queries: functions whose results are kept for a stated time."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import pydantic
from google.cloud import ndb

from rollforward.datastore.contexts import context_namespace
from rollforward.query_cache.call import CachedResult, QueryCall, QueryState, Terms
from rollforward.query_cache.entry import new_generation, space_of
from rollforward.query_cache.single_flight import Flights
from rollforward.query_cache.stats import CacheStats, Counts
from rollforward.runtime import Clients
from rollforward.runtime.cache import MAX_TTL_S
from rollforward.runtime.process.optional_clients import (
    function_with_optional_clients,
    optional_clients,
)
from rollforward.runtime.type_adapters import adapter_of, shape_of
from rollforward.tasks.parameters import hints_of, without_clients

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
LEASE_S = 10
MIN_LEASE_S = 3  # memcached's time has a grain of a second.
_SCALARS = (str, int, float, bool, type(None))


class CachedQuery(Generic[P, T]):
    """A function whose results are kept in memcached; call it like the function."""

    def __init__(
        self,
        function: Callable[Concatenate[Clients, P], T],
        name: str,
        *,
        returns: Any,
        ttl_s: int,
        stale_s: int | None = None,
        lease_s: int = LEASE_S,
        beta: float = 1.0,
        version: int = 1,
    ) -> None:
        """Declare a query, with the arguments of `cached`."""
        stale_s = min(ttl_s, MAX_TTL_S - ttl_s) if stale_s is None else stale_s
        if not NAME.fullmatch(name):
            raise ValueError(f"name must match {NAME.pattern}, got {name!r}")
        for field, seconds in {"ttl_s": ttl_s, "stale_s": stale_s, "lease_s": lease_s}.items():
            if type(seconds) is not int:  # memcached takes no other, and would keep nothing.
                raise ValueError(f"{field} must be whole seconds, got {seconds!r:.100}")
        if not (ttl_s >= 1 and 0 <= stale_s <= MAX_TTL_S - ttl_s):
            limits = f"ttl_s must be at least 1, and ttl_s + stale_s at most {MAX_TTL_S}"
            raise ValueError(f"{limits}, got {ttl_s} and {stale_s}")
        if not MIN_LEASE_S <= lease_s <= MAX_TTL_S:
            limits = f"between {MIN_LEASE_S} and {MAX_TTL_S}"
            raise ValueError(f"lease_s must be {limits}, got {lease_s}")
        if not 0 <= beta < math.inf:
            raise ValueError(f"beta must be finite, and at least 0, got {beta}")
        functools.update_wrapper(self, function)
        self.function = function
        self.terms = Terms(name, ttl_s, stale_s, lease_s, beta, version)
        self._signature = inspect.signature(function)
        self._returns = returns

    @optional_clients
    def __call__(self, clients: Clients, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the function's result, at most `ttl_s` + `stale_s` old."""
        return self.read(clients, *args, **kwargs).value

    @optional_clients
    def read(self, clients: Clients, /, *args: P.args, **kwargs: P.kwargs) -> CachedResult[T]:
        """Return the function's result, with its age and its cost.

        Raises:
            TypeError: an argument is no text, number, bool or None, or the result is not of the
                function's return type.
            Exception: what the function raises, when there is no value that may be served.
        """
        return self._call(clients, *args, **kwargs).read()

    def _call(self, clients: Clients, *args: P.args, **kwargs: P.kwargs) -> QueryCall[T]:
        bound = self._signature.bind(clients, *args, **kwargs)
        bound.apply_defaults()
        compute = partial(self.function, *bound.args, **bound.kwargs)
        return QueryCall(
            clients,
            self.terms,
            self.state(clients),
            self.adapter,
            self._arguments_text(bound),
            compute,
        )

    @optional_clients
    def invalidate(self, clients: Clients) -> bool:
        """Serve no result again that was computed before; to be called after the commit.

        Returns:
            Whether memcached confirmed it. If not, an old value may be served until its end.

        Raises:
            RuntimeError: in a transaction: a reader could store the old result again before the
                commit.
        """
        if ndb.in_transaction():
            raise RuntimeError(
                f"invalidate {self.terms.name!r} after the commit, not in the transaction"
            )
        self.state(clients).epoch[0] += 1
        return new_generation(clients, space_of(clients, self.terms.name))

    @optional_clients
    def empty(self, clients: Clients) -> bool:
        """Forget all results and statistics, as a button does; False: memcached is away."""
        self.state(clients).tally.reset()
        return self.invalidate(clients)

    @optional_clients
    def stats(self, clients: Clients) -> CacheStats:
        """Return how often it was served, and from where, by all processes."""
        return self.state(clients).tally.read()

    def state(self, clients: Clients) -> QueryState:
        """Return this process's memory of the query."""
        space = space_of(clients, self.terms.name)
        return clients.process_state.get_or_create(
            space, lambda: QueryState(Flights(), Counts(clients, space), [0])
        )

    @functools.cached_property
    def adapter(self) -> pydantic.TypeAdapter[T]:
        """The validator of results, built on first use because that is slow."""
        return adapter_of(self._returns)

    def _arguments_text(self, bound: inspect.BoundArguments) -> str:
        """Return the arguments as a text: equal for equal arguments of one function.

        Versions of the code with another type of result share no values. Neither do two functions
        that were given one name by mistake.
        """
        _, *arguments = bound.arguments.items()
        for name, value in arguments:
            flat = value if isinstance(value, tuple) else (value,)
            if not all(type(part) in _SCALARS for part in flat):
                raise TypeError(
                    f"{self.terms.name} is cached by its arguments: {name} must be a text, a "
                    f"number, a bool, None or a tuple of these, not {type(value).__name__}"
                )
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        function = f"{named.__module__}.{named.__qualname__}"
        terms = [self.terms.version, function, shape_of(self._returns), *arguments]
        if (namespace := context_namespace()) is not None:  # Its tenant's, and nobody else's.
            return json.dumps({"namespace": namespace, "terms": terms})
        return json.dumps(terms)


class _Declare(Protocol):
    @overload
    def __call__(self, function: Callable[Concatenate[Clients, P], T], /) -> CachedQuery[P, T]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> CachedQuery[P, T]: ...


def cached(
    name: str,
    *,
    ttl_s: int,
    stale_s: int | None = None,
    lease_s: int = LEASE_S,
    beta: float = 1.0,
    version: int = 1,
) -> _Declare:
    """Keep the results of a function of (clients, ...), or of one that takes no clients.

    Its arguments are texts, numbers, bools, None, or tuples of these. Results are stored as JSON by
    its return type: dataclasses, lists, dicts, texts, numbers, but no entities of ndb.

    Args:
        name: In memcached and in the statistics. Functions that share a name share no results, but
            are invalidated and counted together.
        ttl_s: Seconds for which a result is served.
        stale_s: Seconds more, while another caller refreshes it; None: as many again.
        lease_s: Seconds from the death of the computing process until another one begins, whole
            ones, 3 to 2,592,000 (30 days). A process that lives keeps its lease.
        beta: Above 1, busy results are refreshed earlier before their end.
        version: Add 1 when results of the same type change their meaning.

    Raises:
        TypeError: the function says no return type.
        ValueError: an argument is out of its range.
    """

    def declare(function: Callable[..., T]) -> CachedQuery[..., T]:
        hints = hints_of(function, "it")
        if "return" not in hints:
            raise TypeError(f"{function.__qualname__} needs a return type: it is what is stored")
        return CachedQuery(
            function if _takes_clients(function, hints) else _without_clients(function),
            name,
            returns=hints["return"],
            ttl_s=ttl_s,
            stale_s=stale_s,
            lease_s=lease_s,
            beta=beta,
            version=version,
        )

    return declare  # type: ignore[return-value]


def _takes_clients(function: Callable[..., Any], hints: Mapping[str, Any]) -> bool:
    first = next(iter(inspect.signature(function).parameters), "")
    return hints.get(first) is Clients or (first not in hints and first in ("clients", "_clients"))


def _without_clients(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function with a first parameter for the clients, as its calls are bound."""
    compute = without_clients(function)
    clients = inspect.Parameter("_", inspect.Parameter.POSITIONAL_ONLY)
    declared = inspect.signature(function)
    parameters = [clients, *declared.parameters.values()]
    compute.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
    return compute


@function_with_optional_clients
def get_or_compute(
    clients: Clients,
    name: str,
    compute: Callable[[], T],
    *,
    returns: type[T],
    ttl_s: int,
    args: tuple[str | int | float | bool | None, ...] = (),
    stale_s: int | None = None,
) -> T:
    """Return a result that is kept under a name and arguments, without a declared query.

        total = get_or_compute(clients, "total", count_all, returns=int, ttl_s=60, args=(shop,))

    Args:
        compute: Computes a missing result.
        returns: Its type, as the return type of a function that is `cached`.
    """

    def function(clients: Clients, args: tuple[Any, ...]) -> T:
        return compute()

    query = CachedQuery(function, name, returns=returns, ttl_s=ttl_s, stale_s=stale_s)
    return query(clients, args)


@function_with_optional_clients
def invalidate(clients: Clients, name: str) -> bool:
    """Invalidate all results kept under a name: `CachedQuery.invalidate`."""
    return CachedQuery(lambda clients: None, name, returns=None, ttl_s=1).invalidate(clients)
