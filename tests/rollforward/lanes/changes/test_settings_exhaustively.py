"""A lane whose settings change while its tasks wait and run, in every interleaving.

A deployment comes at any moment. Deliveries that have begun before go on with the settings of
their version, beside those of the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.lanes import Lane
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.runs import claims, delivery
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking.model_checker import CRASH, FLUSH, End, Search
from tests.infra.model_checking.stepwise import NOON, Process, rows
from tests.infra.runs import sampling
from tests.rollforward.lanes.test_lanes_exhaustively import (
    ORDERED,
    PAIRED,
    _tasks_in,
    acting,
    in_steps,
    work,
)

__all__ = ["in_steps"]

TEXTS = "abc"
ALONE = Lane("searched")
HEAVY = Lane("searched", order=True, weight=4, on_dead="block")


class SearchedDeployment(ndb.Model):
    """That the next version serves."""


def deploy(clients: Any) -> None:
    rows("deploy", lambda memory: memory.put(SearchedDeployment(id="next")))


def is_deployed(memory: Memory) -> bool:
    return memory.get(ndb.Key(SearchedDeployment, "next")) is not None


def search_of(old: Lane, new: Lane, fault: str) -> Search:
    """Return the search of who adds three tasks, a deployment, and all hints."""
    many = [work.bind(text) for text in TEXTS]
    add = acting(old, lambda clients: all(work.enqueue_many(clients, many, lane=old("k"))))

    def deliver(clients: Any, hint: Any) -> None:
        lane = new if rows("version", is_deployed) else old
        args = lane.task.read(hint.body)
        acting(lane, lambda clients: delivery.deliver(lane, clients, args))(clients)

    return Search(
        [Process("add", add, NOON), Process("deploy", deploy, NOON)], deliver, fault=fault
    )


def healed(search: Search, lane: Lane, end: End) -> End:
    """Return an end after the sweep of the next version has found what a crash has left."""
    for number in range(3):
        args = LaneArgs("searched|k", is_check=True, due_ms=number)
        act = acting(lane, lambda clients, args=args: delivery.deliver(lane, clients, args))
        end = search.heal(end, [Process(f"sweep {number}", act, NOON)])
    return end


def check(search: Search, old: Lane, new: Lane, end: End) -> None:
    """Each task has run once, or more often over a crash, and within a limit; nothing is left."""
    final = healed(search, new, end) if end.is_broken else end
    left = [key for key in final.rows.facts if key.kind() in ("LaneTask", "LaneState")]
    assert not left, left
    done = {row.key.id(): row for row in _tasks_in(final.rows)}
    for text in TEXTS if end.answers["add"].what == "returned" else "":
        assert done[text].ended >= 1, text
    for text, row in done.items():
        if not (end.is_broken and search.fault == CRASH):
            assert (row.begun, row.ended) == (1, 1), (text, row)
            assert row.at_work <= max(old.limit, new.limit), (text, row)
    if old.order and new.order and done:
        assert sorted(done, key=lambda text: done[text].turn) == [*TEXTS], done


def explore(old: Lane, new: Lane, fault: str) -> Search:
    search = search_of(old, new, fault)
    for end in search.ends():
        try:
            check(search, old, new, end)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{search.story(end)}") from error
    return search


CHANGES = {
    "limit-lowered": (PAIRED, ALONE),
    "limit-raised": (ALONE, PAIRED),
    "order-given": (PAIRED, ORDERED),
    "order-taken": (ORDERED, PAIRED),
    "order-kept": (ORDERED, HEAVY),
}
FAULTS = ("", FLUSH, CRASH) if IS_EXHAUSTIVE else ("",)


@sampling.minute
@pytest.mark.timeout(3600 if IS_EXHAUSTIVE else 240)
@pytest.mark.parametrize("fault", FAULTS, ids=[fault or "sound" for fault in FAULTS])
@pytest.mark.parametrize("change", CHANGES)
def test_each_task_runs_once_whenever_settings_change(change: str, fault: str) -> None:
    """K1, K2, K3, K8, K10, K11: side by side no more are at work than one version allows."""
    assert explore(*CHANGES[change], fault).states > 50


def _sees_no_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version counts the claims of its own settings alone."""
    sound = claims.take

    def take(clients: Any, lane: Lane, *args: Any, **options: Any) -> Any:
        return sound(clients, Lane(lane.name, limit=lane.limit + 1), *args, **options)

    monkeypatch.setattr(delivery, "take", take)


def _claims_by_any_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version claims tasks although another one has changed the state since it looked."""
    sound = claims._claim

    def claim(clients: Any, lane: Lane, lane_id: str, seen: Any, plan: Any) -> bool:
        return sound(clients, lane, lane_id, claims.state_key(lane_id).get(), plan)

    monkeypatch.setattr(claims, "_claim", claim)


@sampling.minute
@pytest.mark.parametrize("plant", [_sees_no_claims, _claims_by_any_state])
def test_the_search_of_changes_bites(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of its guards taken out, the same search fails."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        explore(*CHANGES["limit-raised"], "")
