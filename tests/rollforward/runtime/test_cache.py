"""memcached as a hint: its failures never raise, and no user's text reaches it."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pymemcache
import pytest

from rollforward.runtime import NoCache, open_cache
from rollforward.runtime.cache import (
    COOLDOWN_S,
    MAX_TTL_S,
    REFUSALS_LOGGED_EVERY_S,
    MemcachedCache,
)

pytestmark = pytest.mark.fast


@pytest.fixture
def cache(memcached_address: str | None) -> Iterator[MemcachedCache]:
    if memcached_address is None:
        pytest.skip("there is no memcached on this machine")
    cache = MemcachedCache(memcached_address)
    yield cache
    cache._client.flush_all()
    cache._client.close()


def test_what_was_set_is_got_until_it_is_deleted(cache: MemcachedCache) -> None:
    """Bytes come back as they went in; a miss is None."""
    assert cache.set("k", b"\x00\xff\r\n", 60)
    assert cache.get("k") == b"\x00\xff\r\n"
    assert cache.delete("k")
    assert cache.get("k") is None
    assert not cache.delete("k")


def test_an_add_tells_who_was_first(cache: MemcachedCache) -> None:
    """M4: with the client's own default every add says True, and a lock would have 20 holders."""
    assert cache.add("k", b"mine", 60)
    assert not cache.add("k", b"yours", 60)
    assert cache.get("k") == b"mine"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a b",
        "k\r\nflush_all\r\n",
        "\x00",
        "x" * 5000,
        "庭",
        "\ud83d",
        "k\r\nset canary 0 0 1\r\nx\r\n",
    ],
)
def test_a_key_of_any_text_is_one_key(cache: MemcachedCache, key: str) -> None:
    """S25: no text becomes a command; other values do not change, and replies match their calls."""
    cache.set("canary", b"alive", 60)

    assert cache.set(key, b"value", 60)

    assert cache.get(key) == b"value"
    assert cache.get("canary") == b"alive"
    assert cache.ping()


def test_keys_do_not_run_into_each_other(cache: MemcachedCache) -> None:
    """Different texts are different keys."""
    cache.set("a", b"1", 60)

    assert cache.get("a ") is None
    assert cache.get("A") is None


def test_apps_that_share_a_server_share_nothing_in_it(memcached_address: str | None) -> None:
    """Neither values nor counters: their scopes are parts of all names."""
    if memcached_address is None:
        pytest.skip("there is no memcached on this machine")
    one, same, other = (
        open_cache(memcached_address, scope=scope) for scope in ("demo-a/", "demo-a/", "demo-b/")
    )
    assert one.set("k", b"one", 60)
    assert one.incr("n", 5, 60) == 5

    assert (same.get("k"), same.incr("n", 1, 60)) == (b"one", 6)
    assert (other.get("k"), other.incr("n", 1, 60)) == (None, 1)
    assert not other.delete("k")
    for cache in (one, same, other):
        cache.close()


@pytest.mark.parametrize("ttl_s", [0, -1, MAX_TTL_S + 1])
def test_a_time_to_live_that_means_something_else_is_refused(ttl_s: int) -> None:
    """M5: 0 is for ever, and beyond 30 days is a date in 1970: both are a caller's error."""
    with pytest.raises(ValueError, match="ttl_s"):
        MemcachedCache("127.0.0.1:9").set("k", b"v", ttl_s)
    with pytest.raises(ValueError, match="ttl_s"):
        MemcachedCache("127.0.0.1:9").add("k", b"v", ttl_s)


def test_a_value_that_is_too_large_is_not_stored(cache: MemcachedCache) -> None:
    """The answer is False, and the next call is none the worse."""
    assert not cache.set("k", b"x" * 2**21, 60)
    assert cache.get("k") is None
    assert cache.set("k", b"v", 60)


def test_what_somebody_else_planted_is_bytes(cache: MemcachedCache, memcached_address: str) -> None:
    """S26: no value is unpickled, even if its flags ask for it."""
    host, _, port = memcached_address.rpartition(":")
    cache.set("k", b"x", 60)
    client = pymemcache.Client((host, int(port)), default_noreply=False)
    client.set(cache._name("k"), b"cos\nsystem\n(S'echo'\ntR.", flags=1)
    client.close()

    assert cache.get("k") == b"cos\nsystem\n(S'echo'\ntR."


@pytest.mark.parametrize("cache", [MemcachedCache("127.0.0.1:9"), NoCache(), open_cache(None)])
def test_a_cache_that_is_away_is_a_miss(cache: MemcachedCache) -> None:
    """Nothing raises because of the cache: reads miss, writes say that they did nothing."""
    assert cache.get("k") is None
    assert not cache.set("k", b"v", 60)
    assert not cache.add("k", b"v", 60)
    assert not cache.delete("k")
    assert not cache.ping()
    assert cache.incr("k", 1, 60) is None
    assert cache.incr_existing("k", 1) is None


def test_an_outage_is_logged_once_and_so_is_its_end(
    cache: MemcachedCache, caplog: pytest.LogCaptureFixture
) -> None:
    """A log is for people: a process asked twice a second for as long as memcached was away."""
    clock_s = [100.0]
    away = MemcachedCache("127.0.0.1:9", monotonic=lambda: clock_s[0])
    for _ in range(2):
        for _ in range(3):
            clock_s[0] += COOLDOWN_S
            assert away.get("k") is None
        refusing, away._client = away._client, cache._client
        for _ in range(3):
            clock_s[0] += COOLDOWN_S
            assert away.set("k", b"v", 60)
        away._client = refusing

    words = ["away", "answers"] * 2
    assert len(caplog.messages) == len(words)
    assert all(word in text for word, text in zip(words, caplog.messages, strict=True))


def test_a_counter_changes_only_while_it_is_there(cache: MemcachedCache) -> None:
    """M5: no number is made up for a counter that was lost, and none goes below 0."""
    assert cache.incr_existing("k", 5) is None
    assert cache.add("k", b"65536", 60)
    assert cache.incr_existing("k", 1) == 65537
    assert cache.incr_existing("k", -(2**15)) == 32769
    assert cache.incr_existing("k", -(2**17)) == 0
    assert cache.get("k") is not None
    cache.set("k", b"no number", 60)
    assert cache.incr_existing("k", 1) is None


def test_of_two_who_begin_a_counter_neither_is_lost(
    cache: MemcachedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may find it missing, and the other begin it before the first one does."""
    other = MemcachedCache("{}:{}".format(*cache._client.server))
    add = cache._client.add

    def late(*args: Any) -> Any:
        assert other.incr("k", 2, 60) == 2
        return add(*args)

    monkeypatch.setattr(cache._client, "add", late)

    assert cache.incr("k", 3, 60) == 5
    assert cache.incr("k", 1, 60) == 6
    other.close()


def test_a_server_that_hangs_costs_one_time_out_and_not_one_a_call() -> None:
    """An outage of memcached slows a process down once, then it is left alone for a while."""
    clock_s = [100.0]
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        cache = MemcachedCache(f"{host}:{port}", timeout_s=0.05, monotonic=lambda: clock_s[0])
        silent.settimeout(0.2)

        def connections() -> int:
            with contextlib.suppress(TimeoutError):
                while True:
                    accepted.append(silent.accept()[0])
            return len(accepted)

        for _ in range(5):
            assert cache.get("k") is None
        assert connections() == 1
        clock_s[0] += COOLDOWN_S
        assert cache.get("k") is None
        assert connections() == 2
        cache.close()
        for line in accepted:
            line.close()


class _Full(socketserver.StreamRequestHandler):
    """A memcached that refuses each call, as one without memory does."""

    def handle(self) -> None:
        while self.rfile.readline():
            self.wfile.write(b"SERVER_ERROR out of memory\r\n")


def test_a_server_that_refuses_all_calls_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each call of each request wrote a line, which buried all others."""
    clock_s = [100.0]
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Full) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = "{}:{}".format(*server.server_address)
        cache = MemcachedCache(address, monotonic=lambda: clock_s[0])
        for _ in range(2):
            assert not any(cache.get("k") for _ in range(5))
            clock_s[0] += REFUSALS_LOGGED_EVERY_S
        cache.close()
        server.shutdown()

    refusal = "memcached refuses: MemcacheServerError(b'out of memory')"
    assert caplog.messages == [refusal, f"{refusal}, and 4 calls before it"]


class _Garbage(socketserver.BaseRequestHandler):
    """A program on memcached's port that gives each call the same answer."""

    def handle(self) -> None:
        while self.request.recv(4_096):
            self.request.sendall(b"VALUE x 0 5\r\nhello\r\n\x00\xff garbage\r\n")


def test_an_answer_to_another_question_is_a_miss() -> None:
    """Visitors were answered by 500, and members of batches ran again and again.

    Each operation has an error of Python's own from pymemcache, as a KeyError of `get`.
    """
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Garbage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cache = MemcachedCache("{}:{}".format(*server.server_address))
        answers = [cache.get("a"), cache.set("a", b"1", 9), cache.add("a", b"1", 9)]
        answers += [cache.delete("a"), cache.incr("a", 1, 9), cache.incr_existing("a", 1)]
        server.shutdown()
        cache.close()

    assert not any(answers)


def test_an_empty_pool_is_a_miss_and_the_server_is_not_blamed(cache: MemcachedCache) -> None:
    """More threads than connections: who finds none goes without, and the next one asks again."""
    small = MemcachedCache("{}:{}".format(*cache._client.server), pool_size=1)

    with small._client.client_pool.get_and_release():
        assert small.get("k") is None
        assert not small.set("k", b"v", 60)
        assert not small.add("k", b"v", 60)
        assert not small.delete("k")
        assert small.incr("k", 1, 60) is None
        assert small.incr_existing("k", 1) is None
        assert not small.ping()

    assert small.set("k", b"v", 60)
    assert small.get("k") == b"v"
    small.close()
