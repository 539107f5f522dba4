"""The memcached of the simulator answers as memcached does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rollforward.local.services.standalone import memcached
from rollforward.runtime.cache import Cache, parse_counter
from rollforward.runtime.cache import open_cache as open_real
from tests.infra.runs import soak
from tests.simulation.services.memcached import Memcached, open_cache

SEEDS = range(2_000 if soak.IS_SOAK else 20)
STEPS, KEYS, TTL_S = 60, "abc", 600


def played(cache: Cache, chance: random.Random, scope: str) -> list[Any]:
    """Play a drawn program; return all answers."""
    told: list[Any] = []
    for _ in range(STEPS):
        key = scope + chance.choice(KEYS)
        value = chance.choice([b"0", b"9", b"10", b"text", b"18446744073709551615"])
        match chance.choice(["get", "get", "set", "add", "delete", "incr", "change"]):
            case "get":
                value_now = cache.get(key)
                told.append(value_now)
                told.append(parse_counter(value_now))
            case "set":
                told.append(cache.set(key, value, TTL_S))
            case "add":
                told.append(cache.add(key, value, TTL_S))
            case "delete":
                told.append(cache.delete(key))
            case "incr":
                told.append(cache.incr(key, chance.randrange(1, 5), TTL_S))
            case "change":
                told.append(cache.incr_existing(key, chance.randrange(-9, 9)))
    return told


def test_any_history_has_the_same_answers() -> None:
    with memcached() as address:
        if address is None:
            pytest.skip("memcached is not installed")
        real = open_real(address, timeout_s=10)
        for seed in soak.BUDGET.plays(SEEDS):
            now = [0.0]
            server = Memcached(lambda: now[0])  # noqa: B023
            ours = played(open_cache(lambda: server, lambda: 0.0), random.Random(seed), f"{seed}")  # noqa: B023
            assert ours == played(real, random.Random(seed), f"{seed}"), f"seed {seed}"
        real.close()


def test_a_value_ends_at_its_time() -> None:
    now = [100.0]
    server = Memcached(lambda: now[0])
    cache = open_cache(lambda: server, lambda: now[0])
    assert cache.set("key", b"value", 5)
    assert not cache.add("key", b"other", 5)
    now[0] += 5
    assert cache.get("key") is None
    assert cache.add("key", b"other", 5)
