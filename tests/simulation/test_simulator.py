"""Schedules of the whole app keep all promises; the same seed plays the same one; bugs are noticed.

`make soak` plays as many seeds as its minutes allow. A failure prints the command that plays its
schedule again, with the faults that are needed for it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.infra.runs import sampling, soak
from tests.simulation.faults import KINDS, Fault, parsed, written
from tests.simulation.plan import MAIL_MOODS, PAYMENT_MOODS
from tests.simulation.planted import LATE, PLANTS, Plant
from tests.simulation.schedule import PLAYED_S, Simulator, play_or_shrink, shrunk
from tests.simulation.services.payments import NEVER as REFUSES
from tests.simulation.services.smtp import LOST_AFTER, NEVER, SLOW
from tests.simulation.world import BEGIN_S

# Each seed of a soak has seeds of its own, and so has each day of `make test`.
FEW, MANY = 4, 100_000
FIRST = FEW * sampling.SEED
if soak.IS_SOAK:
    FIRST = 10 * MANY * int(soak.SEED) if soak.SEED.isdigit() else 0
SEEDS = range(FIRST, FIRST + (MANY if soak.IS_SOAK else FEW))

pytestmark = [pytest.mark.timeout(0)] if soak.IS_SOAK else []


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    logging.disable(logging.CRITICAL)  # Of each fault: it takes longer than what it is about.
    simulator = Simulator()
    yield simulator
    simulator.close()
    logging.disable(logging.NOTSET)


def traced(
    simulator: Simulator, seed: int, faults: list[Fault] | None = None, part: str = ""
) -> list[str]:
    """Return all calls of a schedule: when, by whom, and of what."""
    simulator.world.line.is_traced = True
    try:
        return list(simulator.play(seed, faults, [part] if part else ()).trace)
    finally:
        simulator.world.line.is_traced = False


@pytest.mark.soak_share(0.2)
def test_any_schedule_of_the_app_keeps_all_promises(simulator: Simulator) -> None:
    if soak.IS_SOAK:  # Few seeds meet few of them.
        traced(simulator, SEEDS[0], [])
        places = simulator.world.line.made
        soak.BUDGET.could_break({(place, kind) for place in places for kind in KINDS})
    began_s = time.monotonic()
    for seed in SEEDS:
        if soak.BUDGET.is_over():
            break
        played = play_or_shrink(simulator, seed)
        soak.BUDGET.played()
        soak.BUDGET.note(Counter(kind.partition(":")[0] for kind, _ in played.met))
        for kind, call in played.met:
            soak.BUDGET.has_broken((call, kind.partition(":")[0]))
    an_hour = 3600 * soak.BUDGET.counts["played"] / (time.monotonic() - began_s)
    soak.BUDGET.happened["orders' schedules an hour"] = int(an_hour)


def test_a_seed_plays_the_same_schedule_again(simulator: Simulator) -> None:
    """Else a failure could not be played again: not even after others were played."""
    first = traced(simulator, 6)
    assert len(first) > 100
    assert traced(simulator, 7) != first
    assert traced(simulator, 6) == first


@sampling.long
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_noticed(simulator: Simulator, name: str) -> None:
    """At one of the calls of its kind, by a fault that the shipped code stands there."""
    bug = PLANTS[name]
    with bug.plant():
        tried = enumerate(faults_of(simulator, bug))
        noticed = next((number for number, faults in tried if fails(simulator, bug, faults)), None)
        assert noticed is not None
    faults = [*faults_of(simulator, bug)][noticed]
    assert not fails(simulator, bug, faults)


def faults_of(simulator: Simulator, bug: Plant) -> Iterator[list[Fault]]:
    """Yield the faults by which a bug may show, at the calls that the code as it is now makes."""
    earlier = list[Fault]()
    for kind, call in bug.faults[:-1]:
        at = calls_of(simulator, bug, earlier, call)[0]
        earlier.append(Fault(at, kind))
    if not bug.faults:
        yield []
        return
    kind, call = bug.faults[-1]
    for at in calls_of(simulator, bug, earlier, call):
        yield [*earlier, Fault(at, kind)]


def calls_of(simulator: Simulator, bug: Plant, faults: list[Fault], call: str) -> list[int]:
    """Return the numbers of the calls of a schedule whose trace has a text."""
    trace = traced(simulator, bug.seed, faults, bug.part)
    return [int(line.split()[0]) for line in trace if call in line]


def fails(simulator: Simulator, bug: Plant, faults: list[Fault]) -> bool:
    try:
        simulator.play(bug.seed, faults, [bug.part])
    except AssertionError:
        return True
    return False


def test_a_failure_is_shrunk_to_the_faults_that_it_needs(simulator: Simulator) -> None:
    bug = PLANTS["increment-without-key"]
    [[needed], *_] = faults_of(simulator, bug)
    with bug.plant():
        faults = [Fault(0, "flush"), needed, Fault(needed.at + 20, "flush")]
        left = shrunk(simulator, bug.seed, faults, [bug.part])
    assert left == [needed]


def test_faults_strike_while_the_batch_is_sealed_in_its_callback_and_in_a_sweep(
    simulator: Simulator,
) -> None:
    trace = traced(simulator, LATE, [], "pack")
    late = [line for line in trace if float(line.split()[1]) >= BEGIN_S + PLAYED_S]
    calls = [
        "visitor: datastore Commit of OutboxTask, BatchState",
        "delivers /tasks/batches/simulated-days/completed: datastore Commit",
        "sweeps: datastore RunQuery of OutboxTask",
    ]
    at = [next(int(line.split()[0]) for line in late if call in line) for call in calls]
    # An empty memcached changes no call that follows.
    played = simulator.play(LATE, [Fault(call, "flush") for call in sorted(at)], ["pack"])
    assert {place.partition(":")[0] for _, place in played.met} == {
        call.partition(":")[0] for call in calls
    }


def test_a_receipt_is_mailed_again_only_where_no_reply_came_and_given_up_where_it_is_refused(
    simulator: Simulator,
) -> None:
    """Without any fault: copies and refusals come from the moods of the relay alone."""
    met = set[str]()
    for seed in (0, 1, 4, 14, 20, 24, 70):  # Each mood is the first one of an order of theirs.
        simulator.play(seed, [], ["mail"])
        relay, moods = simulator.world.relay, simulator.plan.moods.mail
        orders = relay.copies().keys() | relay.refused
        met |= {moods[order][0] for order in orders if order in moods}
        again = {order for order, mails in relay.copies().items() if len(mails) > 1}
        assert again <= {order for order in moods if {LOST_AFTER, f"{SLOW}:8"} & {*moods[order]}}
        assert relay.refused <= {order for order in moods if {*NEVER} & {*moods[order]}}
    assert met == set(MAIL_MOODS)


def test_an_order_is_charged_once_in_each_mood_of_the_payment_service_or_refused_for_good(
    simulator: Simulator,
) -> None:
    """Without any fault: an order is asked for again only where the mood had it so."""
    met = set[str]()
    for seed in (14, 57, 69, 219):  # Each mood is the first one of an order of theirs.
        simulator.play(seed, [], ["flow"])
        payments, moods = simulator.world.payments, simulator.plan.moods.payments
        charges = payments.charges()
        met |= {moods[order][0] for order in charges.keys() | payments.refused if order in moods}
        assert {len(theirs) for theirs in charges.values()} == {1}
        assert payments.refused == {
            order for order, theirs in moods.items() if {*REFUSES} & {*theirs}
        } & (charges.keys() | payments.refused)
    assert met == set(PAYMENT_MOODS)


def test_the_text_of_faults_is_read_as_it_was_written() -> None:
    faults = [Fault(17, "reply-lost:UNAVAILABLE"), Fault(203, "purge")]
    assert parsed(written(faults)) == faults
