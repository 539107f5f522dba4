"""Planted bugs: each guard of a flow's turns in a lane is taken out, and its test fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollforward.flows import turns
from tests.infra.mutation.lines import Bug
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import Services, World
from tests.rollforward.flows.in_lanes import test_flows_in_lanes as lanes

BUGS = (
    Bug(
        *(turns, "has_turns_elsewhere", "bool(row.lane) and args.lane != row.lane", "False"),
        lanes.test_a_failed_flow_is_retried_in_its_lane,
    ),
    Bug(
        *(turns, "add_turn", "now_utc + TURN_GRACE", "now_utc"),
        lanes.test_flows_that_wait_in_a_paused_key_do_not_fill_the_sweep,
    ),
    Bug(
        *(turns, "take_turn", "if _is_skipped(clients, seen, lane):", "if False:"),
        lanes.test_a_wake_for_nothing_adds_no_turn,
    ),
    Bug(
        *(turns, "take_turn", "(row.started_by, row.turn) == (seen.started_by, seen.turn)", "True"),
        lanes.test_two_wakes_at_one_time_add_one_turn,
    ),
    Bug(
        *(turns, "take_turn", "if lane is None:", "if False:"),
        lanes.test_a_lane_of_another_version_keeps_a_flow_waiting,
    ),
    Bug(
        *(turns, "_is_skipped", "if row.turn is not None:", "if False:"),
        lanes.test_a_flow_has_one_turn_in_its_lane_however_often_it_is_woken,
    ),
    Bug(
        *(turns, "_is_skipped", "first is not None and ", "first is None or "),
        lanes.test_a_flow_whose_turn_was_drained_comes_back_by_the_sweep,
    ),
)


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    yield from lanes.with_lanes(services)


@one_emulator
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_of_turns_that_is_taken_out_is_missed(
    world: World, monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    """W20, W23, W24: each guard of a turn is for something."""
    bug.check_noticed(monkeypatch, world=world)
