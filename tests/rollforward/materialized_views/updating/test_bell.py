"""The bell: saves of one commit ring once for all, and a later save rings again."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from rollforward.materialized_views.updates import FoldTable
from rollforward.materialized_views.updating import contribute
from rollforward.materialized_views.updating.bell import MAX_RINGS, Bell, RecentRings
from rollforward.runtime.cache import NoCache
from rollforward.runtime.sharing import shared_transaction
from rollforward.testing.world import in_threads
from tests.infra.world import Services
from tests.rollforward.materialized_views.harness import (
    Numbers,
    counts,
    number,
    one_emulator,
    played,
)

FOLD = FoldTable("grades.1.1")


def test_a_ring_serves_the_commits_before_it_and_no_later_one() -> None:
    """C1: its task may have listed what waits before a later commit."""
    rings = RecentRings()
    before_s = time.monotonic()

    assert rings.begin(FOLD, before_s)
    assert not rings.begin(FOLD, before_s)
    assert rings.begin(FoldTable(FOLD.table, 100), before_s)
    later_s = time.monotonic()
    assert rings.begin(FOLD, later_s + 1e-9)


def test_a_ring_that_failed_serves_nobody() -> None:
    """C1: the next save of the same commit rings."""
    rings = RecentRings()
    committed_s = time.monotonic()
    assert rings.begin(FOLD, committed_s)
    rings.forget(FOLD)

    assert rings.begin(FOLD, committed_s)


def test_a_process_remembers_no_more_rings_than_it_may() -> None:
    """Ticks are a hundred milliseconds apart, and a process lives for days."""
    rings = RecentRings()
    for tick in range(MAX_RINGS + 5):
        rings.begin(FoldTable(FOLD.table, tick), 0.0)

    assert len(rings._began_s) == 5


class Rung(Exception):
    """A ring that fails."""


@one_emulator
def test_a_ring_is_known_while_it_is_in_progress_and_not_after_it_failed(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: without the time of a commit, as when its outcome is unknown, each caller rings."""
    with played(services, [Numbers]) as (world, views):
        the_bell = views._internals.contributor.transport.bell
        committed_s, rung = time.monotonic(), list[bool]()

        def ring(committed_s: float | None) -> None:
            the_bell.ring_for(world.clients, Numbers, FOLD.table, ["a"], committed_s=committed_s)

        def fail(self: Bell, clients: Any, args: FoldTable) -> None:
            rings = clients.process_state.get_or_create("views:rings", RecentRings)
            rung.append(rings.begin(args, committed_s))
            raise Rung

        monkeypatch.setattr(Bell, "_ring", fail)
        for at_s in (committed_s, committed_s, None, None):
            with pytest.raises(Rung):
                ring(at_s)
        assert rung == [False] * 4

        monkeypatch.setattr(Bell, "_ring", lambda self, clients, args: rung.append(True))
        for at_s in (committed_s, committed_s, None, None):
            ring(at_s)
        assert rung[4:] == [True] * 3


class HeldSave:
    """The first save is held in its transaction until the others wait for the next one."""

    def __init__(self) -> None:
        self.is_in_progress, self.may_go_on = threading.Event(), threading.Event()
        self._sound = contribute.Contributor.contribute

    def contribute(self, *args: Any, **options: Any) -> Any:
        if not self.is_in_progress.is_set():
            self.is_in_progress.set()
            assert self.may_go_on.wait(60)
        return self._sound(*args, **options)


@one_emulator
def test_saves_that_share_a_commit_ring_once(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: also without memcached, and all their updates are applied."""
    rings: list[FoldTable] = []
    sound = Bell._ring

    def ring(self: Bell, clients: Any, args: FoldTable) -> None:
        rings.append(args)
        sound(self, clients, args)

    with played(services, [Numbers]) as (world, views):
        clients, held = replace(world.clients, cache=NoCache()), HeldSave()
        monkeypatch.setattr(Bell, "_ring", ring)
        monkeypatch.setattr(shared_transaction, "MAX_WAIT_S", 60)
        monkeypatch.setattr(
            contribute.Contributor,
            "contribute",
            lambda *args, **options: held.contribute(*args, **options),
        )
        names = [f"n{place}" for place in range(6)]

        def save(name: str) -> None:
            with clients.context():
                views.save(clients, number(name, 1))

        def others() -> None:
            assert held.is_in_progress.wait(60)
            threads = [threading.Thread(target=save, args=[name]) for name in names[1:]]
            for thread in threads:
                thread.start()
            groups = clients.process_state._objects["shared-transactions"]
            while len(groups._waiting) < len(threads):
                time.sleep(0.001)
            held.may_go_on.set()
            for thread in threads:
                thread.join()

        in_threads(lambda: save(names[0]), others)
        monkeypatch.undo()
        world.settle()

        # One of the save that was held, unless it came late, and one of all others.
        assert len(rings) in (1, 2)
        assert counts(world, Numbers, views) == {"all": 6}
