"""The simulated payment service keeps Stripe's rules of a key, and the shop's client knows them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import requests

from rollforward.tasks import Reject, Retry, Unavailable
from tests.simulation.plan import PAYMENT_MOODS
from tests.simulation.processes import Process, in_virtual_time
from tests.simulation.schedule import Simulator
from tests.simulation.services.moods import Moods
from tests.simulation.shop.payments import Charge, Payments
from tests.simulation.world import BEGIN_S, World

ORDER, KEY, CENTS = "v0n0", "a key", 250
PAID = Charge("charge-0", CENTS)
# Of each mood: how the client's call ends, and whether the card was charged.
ENDS: dict[str, tuple[Any, bool]] = {
    "503": (Unavailable, False),
    "429": (Unavailable, False),
    "503:40": (Retry, False),
    "429:40": (Retry, False),
    "reset-before": (Unavailable, False),
    "timeout-before": (Unavailable, False),
    "reset-after": (Unavailable, True),
    "timeout-after": (Unavailable, True),
    "cut": (Unavailable, True),
    "402": (Reject, False),
    "slow:3": (PAID, True),
    "slow:20": (Unavailable, True),
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    logging.disable(logging.CRITICAL)
    simulator = Simulator()
    yield simulator.world
    simulator.close()
    logging.disable(logging.NOTSET)


def asked(world: World, moods: Sequence[str], *calls: tuple[float, int, str]) -> list[Any]:
    """Ask for charges; return each one's result, or its error.

    Args:
        calls: When each begins, its cents, and its key.
    """
    outcomes: list[Any] = []

    def ask(process: Process, cents: int, key: str) -> None:
        bill = {"order": ORDER, "cents": cents}
        try:
            charge = process.clients.service(Payments).charge(bill, key)
            outcomes.append(charge)
        except (Reject, Retry, Unavailable, requests.HTTPError) as error:
            outcomes.append(error)

    with in_virtual_time(world):
        world.begin("payments", [], Moods({}, {ORDER: moods}))
        for after_s, cents, key in calls:
            world.at(BEGIN_S + after_s, "asks", lambda one, call=(cents, key): ask(one, *call))
        world.run(until_s=BEGIN_S + 100)
        world.end()
    return outcomes


def charged(world: World) -> list[int]:
    return [charge.cents for charge in world.payments.charges().get(ORDER, [])]


@pytest.mark.parametrize("mood", PAYMENT_MOODS)
def test_each_mood_ends_the_call_in_its_way_and_a_second_one_charges_no_more(
    world: World, mood: str
) -> None:
    end, is_charged = ENDS[mood]
    [first] = asked(world, [mood], (0, CENTS, KEY))
    assert first == end if isinstance(end, Charge) else isinstance(first, end)
    assert charged(world) == [CENTS] * is_charged
    _, second = asked(world, [mood], (0, CENTS, KEY), (60, CENTS, KEY))
    assert isinstance(second, Reject) if end is Reject else second == PAID
    assert charged(world) == ([] if end is Reject else [CENTS])


def test_retry_after_is_how_long_the_client_waits(world: World) -> None:
    [error] = asked(world, ["503:40"], (0, CENTS, KEY))
    assert error.after_s == 40


def test_a_key_with_another_body_is_a_wrong_request_and_charges_nothing(world: World) -> None:
    first, second = asked(world, [], (0, CENTS, KEY), (1, CENTS + 1, KEY))
    assert first == PAID
    assert second.response.status_code == 400
    assert charged(world) == [CENTS]


def test_of_two_requests_at_once_with_one_key_one_is_told_to_wait(world: World) -> None:
    times = (0, 2, 30)
    conflict, lost, last = asked(world, ["slow:20"], *((at_s, CENTS, KEY) for at_s in times))
    assert isinstance(conflict, Unavailable)
    assert "409" in str(conflict)
    assert isinstance(lost, Unavailable)
    assert last == PAID
    assert charged(world) == [CENTS]


def test_another_key_is_another_charge(world: World) -> None:
    asked(world, ["reset-after"], (0, CENTS, KEY), (1, CENTS, "another key"))
    assert charged(world) == [CENTS, CENTS]
