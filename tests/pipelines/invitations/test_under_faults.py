"""Invitations under faults: every guest counts once, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import World
from tests.pipelines.invitations.scenarios import ImportScenario, SendScenario

Scenario = Callable[[World], Any]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", [ImportScenario, SendScenario])
def test_every_guest_counts_once_with_a_fault_at_any_call(
    world: World, scenario: Scenario, kind: str
) -> None:
    """A1: one fault at each remote call of an import and of a send, from the press on.

    Guests exactly once; mails at least once, and more only within the window that is counted.
    """
    Explorer(world, scenario(world)).explore([kind])


@pytest.mark.parametrize("scenario", [ImportScenario, SendScenario])
def test_every_guest_counts_once_with_all_deliveries_doubled(
    world: World, scenario: Scenario
) -> None:
    """A1: every task delivered twice over: not one guest twice, and not one mail."""
    world.doubles = True

    Explorer(world, scenario(world)).play()
