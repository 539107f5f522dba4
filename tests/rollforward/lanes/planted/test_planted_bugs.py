"""Planted bugs: a guard of lanes is taken out, and the test of its moment fails.

The same tests pass with the guards in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import OUTCOME_UNKNOWN, current_transaction
from rollforward.datastore.versions import commit_of_puts
from rollforward.lanes import adding, hints
from rollforward.lanes.rows import states
from rollforward.lanes.rows.entities import LaneState, LaneTask, place_of, state_key, waiting
from rollforward.lanes.rows.states import over_in
from rollforward.lanes.runs import claims, dead_claims, ends, lookups
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.lanes import test_lane_backlogs as backlogs
from tests.rollforward.lanes import test_lane_guards as guards
from tests.rollforward.lanes.office import IN_ORDER, SHARED
from tests.rollforward.lanes.planted import test_moments_of_guards as moments


def _chooses_the_place_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has the place behind those that are there when it is enqueued."""
    add, places = adding.add_in_transaction, {}

    def add_in_transaction(clients: Any, task: Any, lane_id: str, *args: Any, **more: Any) -> None:
        place = adding._next_place(clients, lane_id, is_ordered=True)
        places[current_transaction().id] = place
        add(clients, task, lane_id, *args, **more)

    def place(self: adding._Adding, lane_id: str, *, is_ordered: bool) -> adding._Place:
        return adding._Place(places[self.transaction.id])

    monkeypatch.setattr(adding, "add_in_transaction", add_in_transaction)
    monkeypatch.setattr(adding._Adding, "_place", place)


def _takes_an_insert_in_doubt_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = adding._insert

    def insert(clients: Any, rows: Any) -> None:
        try:
            sound(clients, rows)
        except OUTCOME_UNKNOWN:
            return

    monkeypatch.setattr(adding, "_insert", insert)


def _takes_an_insert_in_doubt_as_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def insert(clients: Any, rows: Sequence[Any]) -> None:
        for _ in range(adding.MAX_ATTEMPTS):
            try:
                puts = [(row, None) for row in rows]
                vars(adding)["apply_together"](clients, commit_of_puts(clients.datastore, puts))
            except OUTCOME_UNKNOWN:
                continue
            except rpc_errors.AlreadyExists:
                pass
            return

    monkeypatch.setattr(adding, "_insert", insert)


def _gives_up_without_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding._Adding, "on_outcome_unknown", lambda self: None)


def _forgets_what_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that may be committed is forgotten by the next one."""

    def on_retry(self: adding._Adding, cause: Exception) -> None:
        self.added, self.places = [], {}

    monkeypatch.setattr(adding._Adding, "on_retry", on_retry)


def _loses_its_claim_with_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt of a claim's commit takes the first one for another delivery's."""
    sound = claims._claim

    def claim(clients: Any, lane: Any, lane_id: str, seen: Any, plan: Any) -> bool:
        state = state_key(lane_id).get()
        if state is not None and state.claim_of(plan.claim.owner) is not None:
            return False
        return sound(clients, lane, lane_id, seen, plan)

    monkeypatch.setattr(claims, "_claim", claim)


def _keeps_the_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a state does not show in its stamp."""

    def put_state(clients: Any, state: LaneState, stamp: str = "") -> None:
        state.stamp = state.stamp or "s"
        claims._put(clients, state)

    monkeypatch.setattr(claims, "put_state", put_state)


def _begins_what_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclaimed(
        lane_id: str, until: int | None, claimed_ids: Collection[str], limit: int
    ) -> list[LaneTask]:
        return list(waiting(lane_id, until).fetch(limit))

    monkeypatch.setattr(lookups, "_unclaimed", unclaimed)


def _buries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is to watch takes the claims of all others away."""
    sound = claims.dead_claims

    def dead_claims(clients: Any, state: LaneState, *, watches: bool) -> list[Any]:
        return list(state.claims) if watches else sound(clients, state, watches=False)

    monkeypatch.setattr(claims, "dead_claims", dead_claims)


def _watches_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who watches does not notice that a process is known to be dead by now."""
    sound = claims.dead_claims

    def dead_claims(clients: Any, state: LaneState, *, watches: bool) -> list[Any]:
        dead = sound(clients, state, watches=False)
        blind = replace(clients, processes=SimpleNamespace(is_dead=lambda owner: False))
        return dead or sound(blind, state, watches=watches)

    monkeypatch.setattr(claims, "dead_claims", dead_claims)


def _buries_what_has_beaten(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = states.remove_claim

    def remove_claim(lane_id: str, dead: Any, write: Any) -> bool:
        return sound(lane_id, state_key(lane_id).get().claim_of(dead.owner), write)

    monkeypatch.setattr(states, "remove_claim", remove_claim)


def _leaves_the_next_task_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim is taken away, and the task that may be at work is not written."""

    def put_without_claim(
        clients: Any, lane: Any, state: LaneState, claim: Any, *, counts: bool
    ) -> None:
        claims.put_state(clients, state)

    monkeypatch.setattr(claims, "put_without_claim", put_without_claim)


def _compares_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery takes the first claim of its key for its own."""
    monkeypatch.setattr(LaneState, "claim_of", lambda self, owner: next(iter(self.claims), None))


def _believes_in_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery begins tasks however old its last sign of life is."""
    monkeypatch.setattr(claims.Holder, "can_start", lambda self: True)


def _forgets_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_forget", lambda lane, seen: seen.key.delete())


def _remembers_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process does not know that work of its own is over."""
    monkeypatch.setattr(dead_claims, "over_in", lambda clients: set())


def _tells_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "is_over", lambda clients, owner: owner in over_in(clients))
    monkeypatch.setattr(dead_claims, "is_over", states.is_over)


def _counts_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that could not be given back counts as the death of its worker."""
    monkeypatch.setattr(states, "is_over", lambda clients, owner: owner in over_in(clients))


def _forgets_what_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose end failed is no longer the first one of its order."""
    sound = claims.Holder._release

    def release(self: claims.Holder, ended: Any, running: Any, *args: Any) -> Any:
        return sound(self, ended, None, *args)

    monkeypatch.setattr(claims.Holder, "_release", release)


def _moves_to_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that wait until the same moment have the same id."""
    monkeypatch.setattr(ends, "_id_at", lambda task, lane_id, place: f"{lane_id}|{place:016d}-x")


def _believes_in_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task waits until the time of its place, by whatever clock."""

    def next_tasks(
        clients: Any, lane: Any, lane_id: str, head: Any, claimed_ids: Collection[str], limit: int
    ) -> list[LaneTask]:
        until = place_of(clients.clock.now())
        return lookups._unclaimed(lane_id, until, claimed_ids, limit)

    monkeypatch.setattr(lookups, "next_tasks", next_tasks)


def _leaves_no_hint_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint that comes before the time of a task is the last one."""
    monkeypatch.setattr(hints, "hint_at", lambda *args: None)


def _never_loses_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery does not notice that its claim was taken away."""
    monkeypatch.setattr(claims.Holder, "_beat", lambda self, goes_on: True)


Plant = Callable[[pytest.MonkeyPatch], None]
# A guard that is taken out, the test of its moment, and what that takes beside the world.
PLANTED: Sequence[tuple[Plant, Callable[..., None], Mapping[str, object]]] = (
    (
        _chooses_the_place_at_the_call,
        moments.test_a_place_is_chosen_when_the_work_of_a_transaction_is_over,
        {},
    ),
    (
        _takes_an_insert_in_doubt_as_done,
        moments.test_who_adds_a_task_is_told_if_it_is_not_there,
        {},
    ),
    (
        _takes_an_insert_in_doubt_as_not_done,
        moments.test_an_insert_in_doubt_brings_no_task_back,
        {},
    ),
    (
        _gives_up_without_hints,
        moments.test_a_transaction_that_is_given_up_in_doubt_leaves_a_hint,
        {},
    ),
    (
        _forgets_what_is_in_doubt,
        guards.test_a_commit_whose_reply_was_lost_adds_no_task_twice,
        {"lane": IN_ORDER},
    ),
    (
        _loses_its_claim_with_the_reply,
        moments.test_a_claim_whose_reply_was_lost_is_this_delivery_s,
        {},
    ),
    (_keeps_the_stamp, moments.test_two_deliveries_never_claim_by_the_same_state, {}),
    (
        _begins_what_is_claimed,
        moments.test_a_task_that_another_delivery_has_claimed_is_not_begun,
        {},
    ),
    (_buries_at_once, guards.test_a_claim_that_beats_is_not_taken, {}),
    (
        _watches_to_the_end,
        moments.test_a_process_that_dies_while_it_is_watched_is_not_watched_to_the_end,
        {},
    ),
    (
        _buries_what_has_beaten,
        moments.test_a_claim_that_has_beaten_since_it_was_watched_is_not_taken,
        {},
    ),
    (
        _compares_no_owner,
        moments.test_a_delivery_that_has_lost_its_claim_gives_back_no_other_one,
        {},
    ),
    (
        _compares_no_owner,
        moments.test_a_delivery_that_has_lost_its_claim_ends_no_task,
        {"end": "later"},
    ),
    (
        _compares_no_owner,
        moments.test_a_delivery_that_has_lost_its_claim_ends_no_task,
        {"end": "never"},
    ),
    (
        _leaves_the_next_task_as_it_is,
        moments.test_a_claim_that_is_taken_while_a_task_ends_leaves_the_task_as_it_was,
        {"end": "later", "is_over": False},
    ),
    (
        _leaves_the_next_task_as_it_is,
        moments.test_a_claim_that_is_taken_while_a_task_ends_leaves_the_task_as_it_was,
        {"end": "never", "is_over": True},
    ),
    (
        _believes_in_its_claim,
        guards.test_a_process_that_froze_after_its_claim_begins_nothing_when_it_was_taken,
        {},
    ),
    (_never_loses_its_claim, guards.test_a_claim_that_beats_is_not_taken, {}),
    (_forgets_what_has_changed, moments.test_a_state_that_has_changed_is_not_forgotten, {}),
    (
        _remembers_no_end,
        guards.test_a_claim_that_could_not_be_given_back_is_taken_at_once_in_its_process,
        {"lane": SHARED},
    ),
    *(
        (
            plant,
            moments.test_a_claim_that_another_process_could_not_give_back_is_taken_at_once,
            {},
        )
        for plant in (_tells_no_other_process, _counts_an_outage)
    ),
    (
        _forgets_what_has_begun,
        moments.test_a_task_that_could_not_be_put_off_stays_the_first_of_its_order,
        {},
    ),
    (
        _moves_to_the_same_place,
        backlogs.test_tasks_that_wait_for_the_same_moment_are_all_kept,
        {},
    ),
    (
        _believes_in_places,
        backlogs.test_a_task_that_a_wrong_clock_has_added_runs_at_once,
        {"lane": SHARED},
    ),
    (
        _leaves_no_hint_for_later,
        guards.test_a_hint_that_comes_too_early_by_the_clock_is_followed_by_another,
        {},
    ),
)


@one_emulator
@pytest.mark.parametrize(
    ("plant", "moment", "options"), PLANTED, ids=[plant.__name__ for plant, *_ in PLANTED]
)
def test_a_guard_that_is_taken_out_is_missed(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    plant: Plant,
    moment: Callable[..., None],
    options: Mapping[str, object],
) -> None:
    """K1, K2, K3, K4, K5, K7, K8: each guard of an add, a claim and an end is for something."""
    takes = inspect.signature(moment).parameters
    known = {"monkeypatch": monkeypatch, **options}
    plant(monkeypatch)
    with pytest.raises((AssertionError, rpc_errors.GoogleAPICallError)):
        moment(world, **{name: value for name, value in known.items() if name in takes})
