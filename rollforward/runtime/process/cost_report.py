"""Costs of each route and each task of a local process, reported to the console."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollforward.runtime.channel.rpc import Cost, Meter

# The least time between two writes of a process: a reader reloads the page about as often.
WRITTEN_EVERY_S = 0.5


@dataclass
class CostReport:
    """The bill of one process, by route and task.

    Routes and tasks have their declared names, so the report is no longer than the app's lists of
    them, even if callers make up paths.

    Attributes:
        folder: The console of `make run` reads reports there.
        meter: Counts all remote calls of the process.
    """

    folder: Path
    meter: Meter
    costs: dict[tuple[str, str], Cost] = field(default_factory=dict)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        # A process id may be reused, and the costs of a dead worker still count.
        self._name = f"{os.getpid()}-{time.time_ns()}"

    def start(self) -> None:
        """Write the report whenever it has changed, on a thread of its own."""
        threading.Thread(target=self._write_on_change, daemon=True).start()
        atexit.register(self.write)

    def add(self, kind: str, name: str, cost: Cost) -> None:
        """Add the cost of a call.

        Args:
            kind: "route" or "task".
            name: A rule of the app, or the path of a declared task.
        """
        with self._lock:
            self.costs[kind, name] = self.costs.get((kind, name), Cost()) + cost
            self.calls[kind, name] += 1
        self._changed.set()

    def write(self) -> None:
        """Write the report into one file, atomically."""
        with self._lock:
            rows = [
                _row(kind, name, self.calls[kind, name], cost)
                for (kind, name), cost in self.costs.items()
            ]
            outside = self.meter.total() - sum(self.costs.values(), start=Cost())
        rows.append(_row("rest", "", 0, outside))
        part = self.folder / f"{self._name}.part"
        with contextlib.suppress(OSError):  # The console is gone.
            part.write_text(json.dumps(rows))
            part.replace(self.folder / f"{self._name}.costs")

    def _write_on_change(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            self.write()
            time.sleep(WRITTEN_EVERY_S)


def _row(kind: str, name: str, calls: int, cost: Cost) -> dict[str, Any]:
    return {"kind": kind, "name": name, "calls": calls, "cost": cost.as_dict()}
