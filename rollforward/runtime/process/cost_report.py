"""Costs of each route and each task of a local process, written down for the console."""

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
    """The bill of one process, by what was called.

    A call is a route or a task by its declared name, so the report is as long as the app's list of
    routes and tasks, whatever paths its callers make up.

    Attributes:
        folder: Where the console of `make run` looks for reports.
        meter: Counts all that the process asks for, inside of calls and outside.
    """

    folder: Path
    meter: Meter
    costs: dict[tuple[str, str], Cost] = field(default_factory=dict)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        # A process id may come again, and what a dead worker has spent stays spent.
        self._name = f"{os.getpid()}-{time.time_ns()}"

    def start(self) -> None:
        """Write the report down whenever it has changed; no request waits for that."""
        threading.Thread(target=self._write_again_and_again, daemon=True).start()
        atexit.register(self.write)

    def add(self, kind: str, name: str, cost: Cost) -> None:
        """Add a call that has ended.

        Args:
            kind: "route" or "task".
            name: A rule of the app, or the path of a declared task.
        """
        with self._lock:
            self.costs[kind, name] = self.costs.get((kind, name), Cost()) + cost
            self.calls[kind, name] += 1
        self._changed.set()

    def write(self) -> None:
        """Write the report: one file, always a whole one."""
        with self._lock:
            rows = [
                _row(kind, name, self.calls[kind, name], cost)
                for (kind, name), cost in self.costs.items()
            ]
            rest = self.meter.total() - sum(self.costs.values(), start=Cost())
        rows.append(_row("rest", "", 0, rest))
        part = self.folder / f"{self._name}.part"
        with contextlib.suppress(OSError):  # The console is gone.
            part.write_text(json.dumps(rows))
            part.replace(self.folder / f"{self._name}.costs")

    def _write_again_and_again(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            self.write()
            time.sleep(WRITTEN_EVERY_S)


def _row(kind: str, name: str, calls: int, cost: Cost) -> dict[str, Any]:
    return {"kind": kind, "name": name, "calls": calls, "cost": cost.as_dict()}
