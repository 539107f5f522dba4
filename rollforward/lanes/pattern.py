"""Lanes, as the registry knows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollforward.lanes import sweep
from rollforward.lanes.declaration import Lane
from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Pattern


class Lanes(Pattern[Lane]):
    """Lanes, whose keys have tasks that wait for their turn."""

    name = "lanes"
    takes = Lane
    has_unique_names = True

    def tasks(self, parts: Sequence[Lane]) -> Iterable[Task[Any]]:
        return [task for part in parts for task in part.tasks]

    def sweep(
        self, clients: Clients, parts: Sequence[Lane], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Wake keys whose tasks should have begun: their hint was lost, or their worker died."""
        return {"woken": sweep.wake_stale(clients, parts, stale_s=stale_s)}

    def delete_expired(self, clients: Clients) -> int:
        return sweep.remove_expired(clients)
