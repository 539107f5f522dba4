"""Whatever memcached does or holds: a call returns, and what it returns is true or not too old."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from rollforward.query_cache.envelope import MAX_BYTES, Envelope, pack, unpack
from rollforward.testing.injection import CRASH_AFTER, CRASH_BEFORE, ERROR, FLUSH, REPLY_LOST, Crash
from tests.infra.runs import soak
from tests.infra.world import World
from tests.rollforward.query_cache.headlines import (
    STALE_S,
    TTL_S,
    Newsroom,
    another_process,
    entry_of,
    publish,
)

KINDS = (ERROR, REPLY_LOST, FLUSH)


def play(world: World, room: Newsroom) -> None:
    """Read, write, invalidate, expire: what memcached confirms must be seen, the rest in time."""
    clients, other = world.clients, another_process(world.clients)
    publish("one")
    for process in (clients, other, clients):
        assert room.titles(process) == ["one"]
    publish("two")
    is_confirmed = room.headlines.invalidate(other)
    for process in (clients, other):
        assert room.titles(process) in ([["two"]] if is_confirmed else [["one"], ["two"]])
    world.clock.sleep(TTL_S + 1)
    publish("three")
    for process in (clients, other):
        room.titles(process)
    world.clock.sleep(TTL_S + STALE_S + 1)
    for process in (clients, other):
        assert room.titles(process) == ["three"]


def test_a_fault_of_memcached_at_any_call_only_costs_time(world: World) -> None:
    """J3, J4: an error, a lost reply, a flush at calls of a whole play; in a soak, at each."""
    world.plan.on_fire = world.flush
    world.plan.reset()
    with world.clients.context(), world.plan.watched():
        play(world, Newsroom())
    calls = [i for i, name in enumerate(world.plan.calls) if name.startswith("cache.")]
    assert len(calls) > 20

    for nth, kind in enumerate(KINDS):
        for at in calls if soak.IS_SOAK else calls[nth :: len(KINDS)]:
            world.clients.process_state.clear()
            world.flush()
            world.plan.reset(kind, at)
            with world.clients.context(), world.plan.watched():
                play(world, Newsroom())
            assert world.plan.fired, f"{kind} at call {at} did not happen"


@pytest.mark.parametrize("kind", [CRASH_BEFORE, CRASH_AFTER])
def test_a_process_that_dies_at_any_call_leaves_nothing_wrong(world: World, kind: str) -> None:
    """J4: whichever call it dies at, the next process is served what is true."""
    world.plan.reset()
    with world.clients.context(), world.plan.watched():
        publish_and_read(world, Newsroom())
    count = len(world.plan.calls)

    for at in range(count):
        room = Newsroom()
        world.flush()
        world.clients.process_state.clear()
        world.plan.reset(kind, at)
        with world.clients.context(), world.plan.watched(), pytest.raises(Crash):
            publish_and_read(world, room)
        world.bury()
        world.plan.reset()
        with world.context():
            publish("one")
            assert room.titles(world.clients) == ["one"]


def publish_and_read(world: World, room: Newsroom) -> None:
    publish("one")
    room.titles(world.clients)


class Canary:
    """What a pickle would do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def planted(key: str, now_s: float, canary: Path) -> dict[str, bytes | None]:
    """Return what somebody may have put in the place of a value."""
    body = json.dumps([{"title": "planted", "tags": ["news"]}]).encode()
    good = pack(key, Envelope(body, now_s, 0.1, 1, 1))
    assert good is not None
    head, _, rest = good.partition(b"\n")
    deep = b"[" * 100_000 + b"]" * 100_000
    return {
        "a pickle": pickle.dumps(Canary(canary)),
        "a pickle behind a header": head + b"\n" + pickle.dumps(Canary(canary)),
        "nothing": b"",
        "a number": b"7",
        "null": b"null",
        "a list": b'["planted"]\n[]',
        "no header": rest,
        "a header alone": head,
        "cut off": good[:-3],
        "a letter changed": good.replace(b"planted", b"plantex"),
        "of another version": good.replace(head.split(b", ")[0], b"[99", 1),
        "of another key": pack("another key", Envelope(body, now_s, 0.1, 1, 1)),
        "of another type": pack(key, Envelope(b'{"a": 1}', now_s, 0.1, 1, 1)),
        "no JSON": pack(key, Envelope(b"\xff\xfe", now_s, 0.1, 1, 1)),
        "deep": pack(key, Envelope(deep, now_s, 0.1, 1, 1)),
        "a deep header": deep + b"\n[]",
        "of tomorrow": pack(key, Envelope(body, now_s + 86_400, 0.1, 1, 1)),
        "of yesterday": pack(key, Envelope(body, now_s - 86_400, 0.1, 1, 1)),
        "of no time": good.replace(head.split(b", ")[1], b"NaN"),
        "of a negative cost": pack(key, Envelope(body, now_s, -1.0, 1, 1)),
    }


def test_a_planted_value_is_a_miss_and_is_replaced(world: World, tmp_path: Path) -> None:
    """J5, S26: whatever stands there: nothing is unpickled, nothing raises, the truth is served."""
    room, canary = Newsroom(), tmp_path / "canary"
    with world.context():
        publish("one")
        key = entry_of(room, world.clients).key
        stored = planted(key, world.clock.time_s, canary)
        for what, data in stored.items():
            assert data is not None
            assert world.clients.cache.set(key, data, 60), what
            assert room.headlines.read(world.clients, "news").state == "misses", what
            reading = room.headlines.read(world.clients, "news")
            assert reading.state == "hits", what
            assert [headline.title for headline in reading.value] == ["one"], what
        # Those of another time are as they should be, and too old or of a wrong clock.
        assert room.headlines.stats(world.clients).broken == len(stored) - 2
    assert not canary.exists()


def test_a_value_of_ten_megabytes_is_a_miss() -> None:
    """J5, S26: a server with larger values than ours is believed no more."""
    large = Envelope(b'"' + b"x" * 10_000_000 + b'"', 1.0, 0.1, 1, 1)
    assert pack("k", large) is None
    small = pack("k", Envelope(b'"x"', 1.0, 0.1, 1, 1))
    assert small is not None
    assert unpack("k", small + b" " * MAX_BYTES) is None


@pytest.mark.parametrize("junk", [b"", b"7", b"x" * 32 + b"\r\n", b"\xff" * 32, b"y" * 5000])
def test_a_planted_generation_is_replaced(world: World, junk: bytes) -> None:
    """J5: what is no generation does not keep a query from being cached, for ever."""
    room = Newsroom()
    with world.context():
        publish("one")
        key = (
            f"{entry_of(room, world.clients).key.rpartition(':')[0].rpartition(':')[0]}:generation"
        )
        assert world.clients.cache.set(key, junk, 60)
        assert room.titles(world.clients) == ["one"]
        assert room.headlines.read(world.clients, "news").state == "hits"
