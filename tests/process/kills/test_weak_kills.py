"""Real processes, killed for real, with weak stages: nothing is missing behind them, or twice.

Records are pushed to workers, which die over it, and pulled by them. `make test` has 1,200 of each;
`make soak` 15,000, in two rounds. WEAK_RECORDS=5000 is something between.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from rollforward.runtime import Clients
from rollforward.streams import FOREVER
from tests.infra.runs.sampling import kills
from tests.infra.runs.soak import IS_SOAK
from tests.infra.stack import Stack, running_stack, until
from tests.process.kills import weak_app
from tests.process.kills.test_stream_kills import Killer, clients_of
from tests.process.kills.weak_app import COUNTED, PIPELINE, WINDOW, record_of

RECORDS = int(os.environ.get(weak_app.RECORDS) or (15_000 if IS_SOAK else 1_200))
ROUNDS = 2 if IS_SOAK else 1
BATCH = 50
AGAIN = 8  # One push in so many is done again.
KILL_EVERY_S = 3.0 if IS_SOAK else 1.0
LEAST_KILLS = 3
TIMEOUT_S = 900 if IS_SOAK else 300
WINDOW_MS = int(WINDOW.total_seconds() * 1000)


@kills
@pytest.mark.process
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_nothing_is_missing_or_twice_behind_weak_stages_while_workers_are_killed(
    tmp_path: Path, number: int, record_property: Callable[[str, object], None]
) -> None:
    """G14, G1, G2, G3: windows are exact; the weak sink has acted on each record, by one name."""
    effects = tmp_path / "effects"
    more = {weak_app.EFFECTS: str(effects), weak_app.RECORDS: str(RECORDS)}
    with running_stack("--target", "tests.process.kills.weak_app:serve", **more) as stack:
        clients, began = clients_of(stack), time.monotonic()
        with clients.context(), Killer(stack, KILL_EVERY_S) as killer:
            PIPELINE.pull(clients, "log")
            for first in range(0, RECORDS, BATCH):
                push(stack, first)
            until(lambda: killer.kills >= LEAST_KILLS, TIMEOUT_S)
            PIPELINE.close(clients, "raw")
            until(lambda: is_over(clients), TIMEOUT_S)
        with clients.context():
            windows = dict(PIPELINE.states(clients, "collected"))
            status = PIPELINE.status(clients)
            until(lambda: {*names_in(effects)} == {*truth()}, TIMEOUT_S)

    names = names_in(effects)
    acted = sum(sum(each.values()) for each in names.values())
    record_property("seconds", round(time.monotonic() - began))
    record_property("kills", killer.kills)
    record_property("repeated effects", acted - len(names))
    assert {key: sorted(state["windows"]) for key, state in windows.items()} == counted()
    assert status.computations[COUNTED.name].records == len(names)
    assert all(each.dead == 0 for each in status.computations.values())
    assert [n for n, found in names.items() if len(found) > 1] == [], "one name each"
    assert len({name for found in names.values() for name in found}) == len(names)


def push(stack: Stack, first: int) -> None:
    """Push a batch until it is let in, whoever dies over it, and one in some once more."""
    url = f"{stack.app.rstrip('/')}/push/{first}/{min(first + BATCH, RECORDS)}"
    for _ in range(1 if first // BATCH % AGAIN else 2):
        until(lambda: is_answered(url), TIMEOUT_S, 0.05)


def is_answered(url: str) -> bool:
    try:
        return requests.get(url, timeout=30).status_code == 200
    except requests.RequestException:
        return False


def names_in(effects: Path) -> dict[str, Counter[str]]:
    """Return by record the names that the sink got for it, each as often as it acted by it."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in effects.read_text().splitlines() if effects.exists() else ():
        name, _, record = line.partition(" ")
        found[record][name] += 1
    return found


def truth() -> dict[str, tuple[str, int]]:
    """Return what passes the first weak stage: by record its key and its time."""
    made = [
        record_of(source, n, RECORDS) for source in ("pushed", "pulled") for n in range(RECORDS)
    ]
    return {value["n"]: (value["key"], at) for value, at in made if not value["drop"]}


def counted() -> dict[str, list[list[int]]]:
    """Return the windows of each key behind the second weak stage, by a plain script."""
    counts = Counter((key, at // WINDOW_MS * WINDOW_MS) for key, at in truth().values())
    windows: dict[str, list[list[int]]] = defaultdict(list)
    for (key, start), count in sorted(counts.items()):
        for side in ("left", "right"):
            windows[f"{key} {side}"].append([start, count])
    return dict(windows)


def is_over(clients: Clients) -> bool:
    """Return whether the last computation has all it will ever have."""
    status = PIPELINE.status(clients).computations
    return all(each.waiting == 0 and each.watermark >= FOREVER for each in status.values())
