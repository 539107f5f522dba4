"""What a local app's clients go through: how long calls take, without anybody's waiting."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.cloud.datastore_v1.types import CommitRequest, LookupRequest, RollbackRequest
from google.cloud.tasks_v2.types import CreateTaskRequest

from rollforward.cloud_profile import BUNDLED, Profile, load
from rollforward.cloud_profile.profile import CALLS, Latency
from rollforward.cloud_profile.slowdown import (
    RAMP_LUMP,
    DelayedReply,
    KindRamp,
    RandomLatency,
    SlowCache,
)
from rollforward.runtime import NoCache
from rollforward.runtime.channel.write_limit import Contended, Tickets

# Each call has a latency of its own, in seconds, so that a wait says which one was drawn.
LATENCIES = {call: 10.0 * (number + 1) for number, call in enumerate(CALLS)}
KEY = {"path": [{"kind": "Book", "name": "a"}]}
NAMED = {"parent": "queue", "task": {"name": "queue/tasks/a"}}


def profile() -> Profile:
    """Return a profile whose latencies are what they are, and which never pauses."""
    bundled = load(BUNDLED)
    calls = {call: Latency(s * 1000, s * 1000, s * 1000, 1000) for call, s in LATENCIES.items()}
    share = replace(bundled.numbers["pauses.share"], value=0.0)
    return replace(bundled, calls=calls, numbers={**bundled.numbers, "pauses.share": share})


class Wire:
    """A channel with a clock of its own, and a service that takes a second for each call."""

    def __init__(self, *, is_future: bool = False) -> None:
        self.now_s, self.waits, self.asked_at = 100.0, list[float](), list[float]()
        self.is_future = is_future
        self.drawn = RandomLatency(profile(), sleep=self.sleep, monotonic=lambda: self.now_s)

    def sleep(self, seconds: float) -> None:
        self.waits.append(round(seconds, 3))
        self.now_s += seconds

    def call(self, rpc: str, request: Any = None) -> Any:
        def service(details: Any, request: Any) -> Future[str]:
            self.asked_at.append(self.now_s)
            answer: Future[str] = Future()
            if not self.is_future:
                self.now_s += 1
                answer.set_result("done")
            return answer

        details = SimpleNamespace(method=f"/google.some.v1.Service/{rpc}")
        return self.drawn.intercept_unary_unary(service, details, request)


CALLED = {
    "lookup": ("Lookup", LookupRequest(keys=[KEY])),
    "query": ("RunQuery", None),
    "commit": ("Commit", CommitRequest(mutations=[{"upsert": {"key": KEY}}])),
    "begin_transaction": ("BeginTransaction", None),
    "rollback": ("Rollback", RollbackRequest()),
    "create_task": ("CreateTask", CreateTaskRequest(parent="queue", task={})),
    "create_named_task": ("CreateTask", CreateTaskRequest(NAMED)),
}


@pytest.mark.parametrize("name", CALLED)
def test_a_call_takes_as_long_as_is_drawn_for_it_the_service_included(name: str) -> None:
    """What the emulator took is a part of it."""
    wire = Wire()

    assert wire.call(*CALLED[name]).result() == "done"
    assert wire.now_s - 100 == pytest.approx(LATENCIES[name])


def test_calls_that_no_profile_names_are_not_slowed() -> None:
    """Listing queues, drawing ids."""
    wire = Wire()
    wire.call("ListQueues")

    assert (wire.waits, wire.now_s) == ([], 101)


def test_a_commit_happens_in_the_middle_of_its_time() -> None:
    """So locks are held that long, and others write meanwhile; as does a lookup that locks."""
    wire = Wire()
    wire.call(*CALLED["commit"])
    transaction = {"read_options": {"transaction": b"t"}, "keys": [KEY]}
    wire.call("Lookup", LookupRequest(transaction))

    begins = wire.asked_at[0] - 100, wire.asked_at[1] - 100 - LATENCIES["commit"]
    assert begins == (LATENCIES["commit"] / 2, LATENCIES["lookup"] / 2)


def test_a_commit_of_more_entities_takes_longer() -> None:
    """By what the profile has for each."""
    wire = Wire()
    wire.call("Commit", CommitRequest(mutations=[{"upsert": {"key": KEY}}] * 3))

    assert wire.now_s - 100 == pytest.approx(LATENCIES["commit"] + 2)


def test_a_service_that_is_slower_than_its_profile_is_not_waited_for() -> None:
    """Nothing is added."""
    wire = Wire()
    wire.drawn._profile = replace(profile(), calls={**profile().calls, "query": Latency(1, 1, 1)})
    wire.call("RunQuery")

    assert wire.waits == []


def test_a_thread_with_several_reads_under_way_waits_for_none_when_it_asks() -> None:
    """It gets the calls at once, and no answer before its time."""
    wire = Wire(is_future=True)
    calls = [wire.call(*CALLED["lookup"]) for _ in range(3)]

    assert wire.waits == []
    assert not any(call.done() for call in calls)


def test_an_answer_is_told_when_its_time_has_come() -> None:
    """To whoever asks, and to callbacks; not before the call itself has ended."""
    now = [0.0]
    call: Future[str] = Future()
    later = DelayedReply(call, 5.0, lambda: now[0])
    told: list[Any] = []
    call.set_result("done")

    assert not later.done()
    with pytest.raises(grpc.FutureTimeoutError):
        later.result(timeout=0)
    now[0] = 5.0
    later.add_done_callback(told.append)

    assert later.done()
    assert (later.result(), later.exception(), told) == ("done", None, [later])


def test_a_failed_read_fails_when_its_time_has_come() -> None:
    """With the service's own error."""
    call: Future[str] = Future()
    later = DelayedReply(call, 0.0, lambda: 1.0)
    call.set_exception(Contended())

    assert isinstance(later.exception(), Contended)
    with pytest.raises(Contended):
        later.result()


def test_memcached_is_as_slow_as_the_profile_says() -> None:
    """Each operation once."""
    waits: list[float] = []
    cache = SlowCache(NoCache(), profile(), sleep=waits.append)
    answers = [
        cache.get("k"),
        cache.set("k", b"", 3),
        cache.add("k", b"", 3),
        cache.delete("k"),
        cache.incr("k", 1, 3),
        cache.incr_existing("k", 1),
        cache.ping(),
    ]

    assert answers == [None, False, False, False, None, None, False]
    assert waits == pytest.approx([LATENCIES["memcached"]] * 7)


class Counts(NoCache):
    """memcached, as far as tickets need it."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def incr(self, key: str, delta: int, ttl_s: int) -> int | None:
        self.counts[key] = self.counts.get(key, 0) + delta
        return self.counts[key]

    def incr_existing(self, key: str, delta: int) -> int | None:
        return self.incr(key, delta, 1)


class Traffic:
    """Lookups of one kind, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s, self.waited_s = 1000.0, 0.0
        tickets = Tickets(Counts(), now_s=lambda: self.now_s, sleep=self.sleep)
        self.ramp = KindRamp(profile(), tickets, now_s=lambda: self.now_s)

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds

    def look_up(self, kind: str = "Book") -> None:
        request = LookupRequest(keys=[{"path": [{"kind": kind, "name": "a"}]}] * RAMP_LUMP)
        details = SimpleNamespace(method="/google.datastore.v1.Datastore/Lookup")
        self.ramp.intercept_unary_unary(lambda d, r: "done", details, request)


def test_a_new_kind_takes_500_operations_a_second_and_others_are_not_held_up() -> None:
    """What comes beyond that waits, for a second at most."""
    world = Traffic()
    for _ in range(500 // RAMP_LUMP):
        world.look_up()
    in_time_s = world.waited_s
    world.look_up("Page")
    world.look_up()
    waited_s = world.waited_s
    world.now_s = 1000.0  # Side by side with those that waited.
    for _ in range(500 // RAMP_LUMP - 1):
        world.look_up()
        world.now_s = 1000.0

    assert (in_time_s, waited_s) == (0.0, pytest.approx(RAMP_LUMP / 500))
    with pytest.raises(Contended):
        world.look_up()


def test_a_kind_that_has_had_traffic_for_five_minutes_takes_half_as_much_again() -> None:
    """750 a second."""
    world = Traffic()
    world.look_up()
    world.now_s += 300
    for _ in range(750 // RAMP_LUMP):
        world.look_up()

    assert world.waited_s == 0.0
