"""The order in which `make test` gives out files, and what it keeps of their times."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.infra.runs import distribution

MANY = [f"tests/many.py::test_{number}" for number in range(9)]
LONG = "tests/process/long.py::test_it"


class Worker:
    """A worker, as xdist's scheduler sees it, that runs nothing."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_units_are_given_out_as_the_collection_stands() -> None:
    """xdist's own order would begin with the unit of most tests."""
    config: Any = SimpleNamespace(
        option=SimpleNamespace(loadscopereorder=True), getvalue=lambda name: ["popen"] * 2
    )
    scheduler = distribution.Distribution(config, None)
    workers: list[Any] = [Worker("gw0"), Worker("gw1")]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, [LONG, *MANY])

    scheduler.schedule()

    assert workers[0].sent[0] == 0
    assert workers[1].sent == [*range(1, 10)]


def test_the_longest_come_first_by_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a run leaves out keeps its time, and a unit that became short loses it."""
    monkeypatch.setattr(distribution, "SECONDS", tmp_path / "seconds.json")
    kept = {"tests/elsewhere.py": 30.0, "tests/many.py": 50.0}
    distribution.SECONDS.write_text(json.dumps(kept))
    times = {LONG: 40.0, MANY[0]: 0.25, MANY[1]: 0.25}

    distribution.keep(SimpleNamespace(nodeid=id_, duration=s) for id_, s in times.items())

    assert json.loads(distribution.SECONDS.read_text()) == {
        "tests/elsewhere.py": 30.0,
        "tests/process/long.py": 40.0,
    }
    items: list[Any] = [SimpleNamespace(nodeid=id_) for id_ in [*MANY, LONG]]
    distribution.arrange(items)
    assert [item.nodeid for item in items] == [LONG, *MANY]


def test_the_longest_of_those_that_wait_and_that_compute_come_in_turn() -> None:
    seconds = {"a.py": 9, "b.py": 8, "tests/process/c.py": 1, "firestore": 2, "tests/browser/": 3}

    assert distribution.ordered(seconds) == [
        "tests/browser/",
        "a.py",
        "firestore",
        "b.py",
        "tests/process/c.py",
    ]
