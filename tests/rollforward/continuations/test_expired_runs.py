"""What has only proved something goes after its time: pages, heartbeats, uploads."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import replace

import pytest

from rollforward import continuations
from rollforward.continuations import sweep
from rollforward.continuations.entities import (
    CANCELLED,
    PAGES_KEPT_FOR,
    ContinuationHeartbeat,
    ContinuationPage,
    heartbeat_key,
    page_key,
)
from rollforward.continuations.errors import PagesGoneError
from rollforward.continuations.jobs import RefusedItemError
from rollforward.continuations.progress import progress, run_of
from rollforward.continuations.upload_entities import KEPT_FOR, UploadChunk, put_upload
from rollforward.runtime.clock import naive_utc
from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import (
    APPLY,
    Walk,
    count_items,
    ledger,
    put_items,
    run_to_end,
)


def test_pages_of_a_finished_run_go_after_their_time(world: World) -> None:
    """Until then all is there; afterwards the totals are, and pages and heartbeats are not."""
    put_items(world, 5)
    run_to_end(world, APPLY, "run")
    with world.context():
        progress_before = progress("run")
        now_utc = naive_utc(world.clock.now())
        ContinuationHeartbeat(id=f"{page_key('run', 0, 0).id()}:a", expires_at=now_utc).put()
    world.clock.sleep(PAGES_KEPT_FOR.total_seconds() - 60)
    world.sweep()
    with world.context():
        assert progress("run") == progress_before

    world.clock.sleep(120)
    world.sweep()

    with world.context():
        assert progress("run") == replace(progress_before, dots=[], pages=[])
        for kind in (ContinuationPage, ContinuationHeartbeat):
            assert not kind.query().fetch(keys_only=True)
        with pytest.raises(PagesGoneError):
            continuations.retry_failed(world.clients, {"apply": APPLY}, "run")
        assert sweep.delete_expired(world.clients) == 0


@pytest.mark.parametrize("late_s", [0.001, 86_400])
def test_a_retry_comes_too_late_when_the_pages_may_go(world: World, late_s: float) -> None:
    """Whether or not a sweep has been: half of them may be gone before the retry reads them."""
    put_items(world, 1)
    run_to_end(world, APPLY, "run")
    with world.context():
        until = run_of("run").pages_until.replace(tzinfo=datetime.UTC)
    world.clock.sleep((until - world.clock.now()).total_seconds() + late_s)

    with world.context(), pytest.raises(PagesGoneError):
        continuations.retry_failed(world.clients, {"apply": APPLY}, "run")


@pytest.mark.parametrize("most", [2, 3])
def test_a_sweep_deletes_no_more_than_it_may(
    world: World, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Of uploads, heartbeats and pages together; the rest goes the next times."""
    monkeypatch.setattr(sweep, "MAX_DELETED", most)
    put_items(world, 5)
    for run_id in ("run", "other"):
        run_to_end(world, APPLY, run_id)
    with world.context():
        now_utc = naive_utc(world.clock.now())
        put_upload("upload", b"x" * 140_000, now_utc)
        for owner in "ab":
            key = heartbeat_key(page_key("run", 0, 0).id(), owner)
            ContinuationHeartbeat(key=key, expires_at=now_utc).put()
    world.clock.sleep(PAGES_KEPT_FOR.total_seconds() + 1)
    run_to_end(world, APPLY, "young")

    with world.context():
        rows = [_expiring()]
        while rows[-1] > 3:
            assert sweep.delete_expired(world.clients) == rows[-1] - _expiring()
            rows.append(_expiring())
        assert sweep.delete_expired(world.clients) == 0
        remaining = Counter(page.key.id().partition(":")[0] for page in ContinuationPage.query())

    assert rows == [*range(14, 3, -most), 3]
    assert remaining == {"young": 3}


def _expiring() -> int:
    """Return how many rows there are of those that expire."""
    kinds = (UploadChunk, ContinuationHeartbeat, ContinuationPage)
    return sum(len(kind.query().fetch(keys_only=True)) for kind in kinds)


def test_pages_are_kept_while_a_retry_reads_them(services: Services) -> None:
    """A retry that was cancelled for a month and resumed still knows what had failed."""
    refuse = [True]

    def pick(clients, args, items):  # type: ignore[no-untyped-def]
        if refuse[0]:
            return [RefusedItemError("no") for _ in items]
        return count_items(clients, args, items)

    job = replace(APPLY, apply=pick)
    world = World(services, [job])
    names = put_items(world, 3)
    with world.context():
        continuations.start(world.clients, job, Walk("run"), run_id="run")
    world.settle()
    refuse.clear()
    refuse.append(False)
    with world.context():
        retry = continuations.retry_failed(world.clients, {"apply": job}, "run")
        continuations.cancel(retry)
    world.settle()
    world.clock.sleep(PAGES_KEPT_FOR.total_seconds() + 60)
    world.sweep()

    with world.context():
        assert progress(retry).state == CANCELLED
        continuations.resume(world.clients, {"apply": job}, retry)
    world.settle()

    assert ledger(world, "run") == Counter(names)


def test_uploaded_files_go_after_their_time(world: World) -> None:
    """Where no TTL policy deletes them, the sweep does."""
    with world.context():
        now_utc = naive_utc(world.clock.now())
        put_upload("old", b"x" * 100_000, now_utc - KEPT_FOR - datetime.timedelta(minutes=1))
        put_upload("new", b"x" * 100_000, now_utc)

    world.sweep()

    with world.context():
        remaining = {
            key.id().partition(":")[0] for key in UploadChunk.query().fetch(keys_only=True)
        }
    assert remaining == {"new"}
