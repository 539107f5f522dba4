"""The app's use of Datastore's limits, from the reports of its processes."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LimitUse:
    """The largest use of one limit that a process of this run has made."""

    name: str
    most: int
    unit: str
    advice: str
    size: int
    what: str

    @property
    def percent(self) -> int:
        """The used share of the limit, rounded up."""
        return -(-100 * self.size // self.most)


def limit_uses(folder: Path) -> list[LimitUse]:
    """Return the largest use of each limit, the nearest one first."""
    largest: dict[str, LimitUse] = {}
    for path in folder.glob("*.limits"):
        for row in json.loads(path.read_text()):
            use = LimitUse(**row)
            if use.name not in largest or use.size > largest[use.name].size:
                largest[use.name] = use
    return sorted(largest.values(), key=lambda use: -use.size / use.most)
