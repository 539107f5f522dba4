"""How a caller waits for the process that has the lease, and what a result says of itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollforward.query_cache import CachedQuery, cached
from rollforward.query_cache.entry import MAX_POLL_S, POLL_FACTOR, POLL_S, CacheEntry
from rollforward.query_cache.envelope import Envelope, pack, unpack
from rollforward.runtime import Clients
from tests.rollforward.query_cache.timed import START_S, Time, TimedCache, process

LEASE_S, LONG_S = 3, 3_600
RENEWED_AT_S = 2.0

pytestmark = pytest.mark.fast


def front(clients: Clients) -> str:
    """Compute nothing that could be another value."""
    return "front"


def query() -> CachedQuery[[], str]:
    return CachedQuery(front, "front", returns=str, ttl_s=20, beta=0.0)


def waits(time: Time, entry: CacheEntry) -> tuple[list[float], float]:
    """Wait for a lease that is renewed once; return the pauses, and when the wait ended."""
    cache, pauses, last_s = entry.clients.cache, list[float](), time.now_s

    def on_sleep() -> None:
        nonlocal last_s
        pauses.append(time.now_s - last_s)
        last_s = time.now_s
        if last_s - START_S > RENEWED_AT_S and renewals:
            cache.set(entry._lease_key, renewals.pop(), LONG_S)

    renewals = [b"holder.1"]
    cache.set(entry._lease_key, b"holder.0", LONG_S)
    time.on_sleep = on_sleep
    assert entry.wait(LEASE_S, lambda envelope: True) is None
    return pauses, time.now_s - START_S


def test_a_caller_waits_until_a_lease_was_not_renewed_for_its_length() -> None:
    """J4: from its last renewal on, and looks ever less often."""
    time = Time()
    entry = query()._call(process(TimedCache(time))).entry()
    assert entry is not None
    pauses, ended_s = waits(time, entry)

    grown = [POLL_S * POLL_FACTOR**n for n in range(len(pauses))]
    assert pauses == pytest.approx([min(MAX_POLL_S, pause_s) for pause_s in grown], abs=1e-6)
    assert RENEWED_AT_S + LEASE_S < ended_s <= RENEWED_AT_S + LEASE_S + 3 * MAX_POLL_S
    assert entry.clients.cache.get(entry._lease_key) is None


def test_a_value_is_served_only_in_this_format_and_under_its_key() -> None:
    """J5: a value of an earlier format may have the same checksum."""
    envelope = Envelope(b'"front"', START_S, 0.1, 1, 1)
    data = pack("k", envelope)
    assert data is not None
    line, _, body = data.partition(b"\n")
    version, *rest = json.loads(line)
    assert unpack("k", data) == envelope
    assert unpack("k", json.dumps([version + 1, *rest]).encode() + b"\n" + body) is None
    assert unpack("k", json.dumps([version, *rest[:-1], "x"]).encode() + b"\n" + body) is None
    assert unpack("k", line + b"\n" + b'"other"') is None


def test_a_query_without_a_version_has_the_first() -> None:
    """J1: results that are stored by then stay those of this version."""
    declared: Any = cached("front", ttl_s=20)(front)
    assert (declared.terms.version, query().terms.version) == (1, 1)


def test_a_result_of_another_process_is_as_old_as_what_it_has_read() -> None:
    """J2: the caller has waited for it, and the next one says the same of it."""
    time = Time()
    cache = TimedCache(time)
    slow, waiting = process(cache), process(cache)
    asked: CachedQuery[[], str] = query()
    entry = asked._call(waiting).entry()
    assert entry is not None
    lease = entry.lease(LEASE_S)
    assert lease is not None

    def compute() -> None:
        if time.now_s - START_S > 2.0 and not entry.load()[0]:
            entry.store(Envelope(b'"front"', START_S, 2.0, 1, 1))

    time.on_sleep = compute
    with waiting.context():
        shared = asked.read(waiting)
    with slow.context():
        hit = asked.read(slow)
    assert (shared.state, hit.state) == ("shared", "hits")
    assert shared.age_s == hit.age_s > 2.0


def test_a_result_that_was_just_computed_has_no_age() -> None:
    """J2: the next caller's has."""
    time, asked = Time(), query()
    clients, ages = process(TimedCache(time)), list[float]()
    for _ in range(2):
        with clients.context():
            ages.append(asked.read(clients).age_s)
        time.now_s += 5
    assert ages == [0.0, 5.0]
