"""What befalls the processes of the simulator, and how often."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from rollforward.app_code import ControlFlow
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.storage.remote_calls import Wake

FAULTS = ("crash", "machine", "stall", "lost", "refused", "zombie")


class KilledError(ControlFlow):
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


@dataclass
class Process:
    """A generator under way."""

    steps: Generator[Any, Any, Any]
    machine: Machine
    wake: Wake | None
    user: Callable[[], Any] | None = None
    ready_ms: int = 0
    answer: Any = None
    error: Exception | None = None
    joining: Any = None  # The offer whose end it waits for.
