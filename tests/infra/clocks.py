"""Clocks that are wrong."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

from rollforward.runtime import Clients, Clock


@dataclass(frozen=True)
class Ahead:
    """A clock that is wrong."""

    clock: Clock
    seconds: float

    def now(self) -> datetime.datetime:
        return self.clock.now() + datetime.timedelta(seconds=self.seconds)

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)


def ahead(clients: Clients, seconds: float) -> Clients:
    return replace(clients, clock=Ahead(clients.clock, seconds))
