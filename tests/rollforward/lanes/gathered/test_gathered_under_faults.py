"""Gathering lanes with a fault at any remote call: each call in one window, whose set is fixed."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.datastore import transact
from rollforward.lanes import Call, Gathered, debounced
from rollforward.lanes.gathered.timing import Debounce, Throttle, Timing, Unique
from rollforward.lanes.gathered.window import Window
from rollforward.lanes.rows.entities import LaneTask, state_key
from rollforward.runtime.process.current import use_clients
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Reject
from rollforward.testing.injection import (
    CRASH_AFTER,
    CRASH_BEFORE,
    ERROR,
    FLUSH,
    KINDS,
    OVERLAP,
    REPLY_LOST,
)
from tests.infra.faults.explorer import ALL, IS_EXHAUSTIVE, Explorer
from tests.infra.world import Services, World
from tests.rollforward.lanes.gathered import mailroom
from tests.rollforward.lanes.gathered.mailroom import DESK, MailRun, Note, digest, sync

# A hint that was lost: the first sweep after it may be too early, the second is not.
MOST_SWEEPS = dict.fromkeys((*KINDS, OVERLAP, FLUSH), 2)
TEXTS = ("0", "1")


class NoteSent(ndb.Model):
    """A call that was committed."""


@dataclass
class CallScenario:
    """Two calls of a key, each in a transaction; its run works."""

    world: World
    lane: Gathered[Note] = digest

    def begin(self, tag: str) -> None:
        DESK.before = self.act
        with use_clients(self.world.clients):
            for text in TEXTS:
                transact(lambda: self.send(tag, text))  # noqa: B023

    def send(self, tag: str, text: str) -> None:
        if NoteSent.get_by_id(f"{tag}|{text}") is None:
            NoteSent(id=f"{tag}|{text}").put()
            self.lane.call(tag, Note(text))

    def act(self, run: MailRun) -> None:
        """Act within a run."""

    def is_done(self, tag: str) -> bool:
        return not self.waiting(tag) and len(self.calls_of(tag)) == len(TEXTS)

    def waiting(self, tag: str) -> list[Any]:
        return [key for key in LaneTask.query().fetch(keys_only=True) if f"|{tag}|" in key.id()]

    def calls_of(self, tag: str) -> list[str]:
        """Return the ids of the calls that have ended, each as often as it was in a window."""
        windows = {run.ids[0]: run.ids for run in DESK.done if run.person == tag}
        return [call for ids in windows.values() for call in ids]

    def check(self, tag: str, fault: str) -> None:
        calls = self.calls_of(tag)
        assert len(set(calls)) == len(calls) == len(TEXTS), fault
        sets = {run.ids for run in DESK.begun if run.person == tag}
        assert sorted(call for ids in sets for call in ids) == sorted(calls), (sets, fault)
        texts = {run.ids: run.texts for run in DESK.begun if run.person == tag}
        in_order = [text for ids in sorted(texts) for text in texts[ids]]
        assert in_order == list(TEXTS), fault
        if fault.partition(" ")[0] in ("", OVERLAP, FLUSH):  # No reply is lost, and nobody dies.
            ids = [run.ids for run in DESK.done if run.person == tag]
            assert len(set(ids)) == len(ids), (ids, fault)
        state = state_key(f"{self.lane.name}|{tag}").get()
        assert state is None or not (state.claims or Window.of(state).calls), fault


class FailingScenario(CallScenario):
    """The first run of a window fails."""

    def act(self, run: MailRun) -> None:
        if sum(other.person == run.person for other in DESK.begun) == 1:
            raise ValueError("broken")


class DeadScenario(CallScenario):
    """The calls can never work: they are in dead tasks, each once."""

    leaves = ("DeadTask",)

    def act(self, run: MailRun) -> None:
        raise Reject("no such address")

    def calls_of(self, tag: str) -> list[str]:
        bodies = [json.loads(dead.body) for dead in open_dead_tasks().fetch()]
        mine = [body for body in bodies if body["lane_id"].endswith(f"|{tag}")]
        return [call["id"] for body in mine for call in body["calls"]]


TIMINGS: Sequence[Timing] = (
    Debounce(20, 50),
    Throttle(30),
    Debounce(5, 20),
    Unique(is_dropped_while_running=False),
)


@debounced("test-changing-digest", wait_s=20, max_attempts=4)
def changing(person: str, calls: Sequence[Call[Note]]) -> None:
    """Mail a person all that has happened."""
    DESK.work(person, calls)


class ChangingScenario(FailingScenario):
    """Each call and each run finds other settings of the lane than the one before."""

    timings: Iterator[Timing] = iter(())

    def begin(self, tag: str) -> None:
        self.timings = itertools.cycle(TIMINGS)
        super().begin(tag)

    def send(self, tag: str, text: str) -> None:
        self.lane.timing = next(self.timings)
        super().send(tag, text)

    def act(self, run: MailRun) -> None:
        self.lane.timing = next(self.timings)
        super().act(run)


SCENARIOS: Sequence[tuple[str, type[CallScenario], Gathered[Note]]] = (
    ("debounced", CallScenario, digest),
    ("unique-failing", FailingScenario, sync),
    ("debounced-dead", DeadScenario, digest),
    ("changing", ChangingScenario, changing),
)


@pytest.fixture(params=SCENARIOS, ids=lambda param: param[0])
def scenario(request: pytest.FixtureRequest, services: Services) -> CallScenario:
    _, kind, lane = request.param
    return played(kind, lane, services)


def played(kind: type[CallScenario], lane: Gathered[Note], services: Services) -> CallScenario:
    world = World(services, lanes=[*mailroom.LANES, changing])
    DESK.__init__(clock=world.clock)  # type: ignore[misc]
    return kind(world, lane)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_call_is_in_one_window_with_a_fault_at_any_remote_call(
    scenario: CallScenario, kind: str
) -> None:
    """R1, R2, R6, R10: one window for each call, the same calls in each of its runs, none lost."""
    assert Explorer(scenario.world, scenario, MOST_SWEEPS).explore([kind])


def test_each_call_is_in_one_window_when_deliveries_overlap(scenario: CallScenario) -> None:
    """R1, R2: a second delivery runs from start to end inside the first."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario, MOST_SWEEPS).explore([OVERLAP], at_most=6)


@pytest.mark.parametrize("seed", range(2))
def test_each_call_is_in_one_window_in_any_order(scenario: CallScenario, seed: int) -> None:
    """R1, R2: every task delivered twice, in a shuffled order, and side by side."""
    scenario.world.doubles = seed == 0
    scenario.world.overlaps = seed == 1
    scenario.world.order = random.Random(seed)
    Explorer(scenario.world, scenario, MOST_SWEEPS).play()


@pytest.mark.skipif(not IS_EXHAUSTIVE, reason="pairs are played by `make soak`")
def test_each_call_is_in_one_window_with_two_faults(scenario: CallScenario) -> None:
    """R1, R2: two remote calls break."""
    firsts, seconds = [REPLY_LOST, CRASH_AFTER, OVERLAP], [REPLY_LOST, ERROR, CRASH_BEFORE]
    if scenario.world.services.datastore_kind == "firestore":
        firsts.remove(OVERLAP)
    Explorer(scenario.world, scenario, MOST_SWEEPS).explore_pairs(firsts, seconds)


# Planted bugs; those of races are planted in the search of all interleavings.


def _fixes_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails, or whose worker dies, forgets which calls it had."""
    sound = Window.failed

    def failed(window: Window, *args: Any) -> Window:
        return replace(sound(window, *args), calls=window.calls[:1])

    monkeypatch.setattr(Window, "failed", failed)


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: Sequence[tuple[type[CallScenario], Gathered[Note], Plant, Sequence[str]]] = (
    (FailingScenario, sync, _fixes_no_calls, [CRASH_BEFORE]),
)


@pytest.mark.parametrize(
    ("kind", "lane", "plant", "faults"), PLANTED, ids=[plant.__name__ for *_, plant, _ in PLANTED]
)
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[CallScenario],
    lane: Gathered[Note],
    plant: Plant,
    faults: Sequence[str],
) -> None:
    """With one of its guards taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = played(kind, lane, services)
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario, MOST_SWEEPS).explore(faults, ALL)
