"""The line that every remote call of the simulated processes crosses, and that breaks some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from rollforward.testing.calls import APP, RemoteCall
from rollforward.testing.injection import Crash, code_of
from tests.simulation.faults import Fault

if TYPE_CHECKING:
    from tests.simulation.world import World


CALL_S = 0.004


def place_of(call: RemoteCall) -> str:
    """Return the method of a call and the first thing that it is about: for coverage.

    >>> place_of(RemoteCall("Commit", "datastore", "OutboxTask, SourceMarker"))
    'Commit of OutboxTask'
    >>> place_of(RemoteCall("cache.get", "cache", "fork-join:lock:revenue:2030"))
    'cache.get of fork-join:lock'
    """
    subject, *_ = call.subject.split(", ")
    about = ":".join(subject.split(":")[:2])
    return f"{call.name} of {about}" if about else call.name


class FaultLine:
    """Stands where a `FaultPlan` stands for tests of one process.

    Attributes:
        calls: The number of calls so far.
        trace: All of them, if `is_traced`; and `made`, who makes which.
        met: Of each fault that fired: its kind, who met it, and at which call.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._faults: dict[int, str] = {}
        self.calls = 0
        self.is_traced = False
        self.trace: list[str] = []
        self.made: set[str] = set()
        self.met: list[tuple[str, str]] = []

    def begin(self, faults: Sequence[Fault]) -> None:
        """Count from zero, and break the given calls."""
        self._faults = dict(faults)
        self.calls, self.trace, self.made, self.met = 0, [], set(), []

    def has_met(self, fault: str) -> bool:
        """Return whether a fault of a kind has fired."""
        return any(kind.partition(":")[0] == fault for kind, _ in self.met)

    def is_over(self) -> bool:
        """Return whether no fault is to come."""
        return all(at < self.calls for at in self._faults)

    def end(self) -> None:
        """Break nothing any more."""
        self._faults = {}

    def around(
        self,
        name: str,
        effect: Callable[[], Any],
        error: Callable[[grpc.StatusCode], Exception],
        described: Callable[[], RemoteCall] | None = None,
    ) -> Any:
        """Make one call of a process, or break it."""
        world, actor = self._world, self._world.current
        if actor is None:  # The model looks on.
            return effect()
        if actor.is_dead:
            raise Crash
        index = self.calls
        self.calls += 1
        kind = self._faults.get(index)
        if kind is not None or self.is_traced:
            call = described() if described is not None else RemoteCall(name, APP)
            fault = f" {kind}" if kind else ""
            self.trace.append(f"{index} {world.now_s:.6f} {actor}: {call}{fault}")
            place = f"{actor.name}: {place_of(call)}"
            self.made.add(place)
            if kind is not None:
                self.met.append((kind, place))
        world.now_s += CALL_S
        if world.switch_rate and world.order.random() < world.switch_rate:
            world.sleep(0.0)
        return effect() if kind is None else self._break(kind, effect, error)

    def _break(
        self, kind: str, effect: Callable[[], Any], error: Callable[[grpc.StatusCode], Exception]
    ) -> Any:
        world, (fault, _, how) = self._world, kind.partition(":")
        match fault:
            case "error":
                raise error(code_of(kind))
            case "crash-before":
                world.die()
            case "pause-before":
                world.sleep(float(how))
            case "flush":
                world.memcached.values.clear()
            case "purge":
                world.purge()
            case "double":
                world.double(float(how))
            case "clock":
                world.set_clock(float(how))
        answer = effect()
        match fault:
            case "reply-lost":
                raise error(code_of(kind))
            case "crash-after":
                world.die()
            case "pause-after":
                world.sleep(float(how))
        return answer
