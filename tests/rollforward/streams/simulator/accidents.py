"""What befalls the processes of the simulator, and how often."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollforward.streams.graph.declaration import Declaration

FAULTS = ("crash", "machine", "stall", "lost", "refused", "zombie")


class KilledError(BaseException):
    """A hook has killed its process."""


class UnavailableError(Exception):
    """A service did not answer."""


@dataclass
class Machine:
    """What dies together."""

    number: int
    skew_ms: int
    caches: dict[Any, Any] = field(default_factory=dict)
    pipeline: Declaration | None = None  # Of another version of the code.


@dataclass(frozen=True)
class Chances:
    """How likely each fault is, at each call."""

    crash: float = 0.015
    machine: float = 0.003
    stall: float = 0.012
    lost: float = 0.02
    refused: float = 0.015
    zombie: float = 0.01
    double: float = 0.1
    delay: float = 0.1
    purge: float = 0.0005  # At each step: all tasks are deleted.
    mistaken: float = 0.02  # The holder of a lease is taken for dead.


NO_FAULTS = Chances(0, 0, 0, 0, 0, 0, 0, 0, 0, mistaken=0)
