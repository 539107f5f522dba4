"""Views: saves with and without them, updates against rival designs, reads against a query.

Eight clients send requests over persistent HTTP connections to gunicorn with two workers; the
clients share the two cores with everything else. Updates are measured with memcached, so that saves
can share a task that folds them. benchmarks/materialized_views/app.py explains the designs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

from google.cloud import ndb

from benchmarks.harness.load import Load, counted, new_numbers
from benchmarks.harness.results import Result
from benchmarks.harness.testbed import LOCATION, PROJECT, Bench, open_testbed
from benchmarks.materialized_views.app import GRADES, GROUPS, Bare, ByGrade, Total, source
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import Cost

CLIENTS = 8
SAVES = 480
ROUNDS = 5
TIMEOUT_S = 120
SIZES = (1_000, 10_000)
DESIGNS = ("put", "0", "1", "3")
UNDER_WAY = ("queued", "scheduled", "retrying", "running")


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    with open_testbed("benchmarks.materialized_views.app:serve()") as bench:
        for design in DESIGNS:
            _run(bench, design, 50)
        bench.queue.wait_idle(TIMEOUT_S)
        yield from _saves(bench)
        yield from _operations(bench)
        yield from _reads(bench)
    with open_testbed("benchmarks.materialized_views.app:serve()", is_cached=True) as bench:
        for design in DESIGNS:
            _run(bench, design, 50)
        bench.queue.wait_idle(TIMEOUT_S)
        yield from _updates(bench)


# Saves


def _saves(bench: Bench) -> Iterator[Result]:
    """Compare saves a second with bare puts, while updates wait in their queue."""
    took: dict[str, list[float]] = {design: [] for design in DESIGNS}
    for _ in range(ROUNDS):
        for design, times in took.items():
            _pause(bench, paused=True)
            times.append(_run(bench, design, SAVES).seconds)
            _until_relayed(bench)
            _forget_updates(bench)
    _pause(bench, paused=False)
    rates = {design: SAVES / statistics.median(times) for design, times in took.items()}
    for views in ("0", "1", "3"):
        yield Result(
            f"materialized_views.saves_per_s_with_{views}",
            rates[views] / rates["put"],
            "ratio",
            "a bare put",
            0.5 if views == "1" else None,
            raw={
                "ours_per_s": round(rates[views], 1),
                "theirs_per_s": round(rates["put"], 1),
                "clients": CLIENTS,
                "rounds": ROUNDS,
            },
        )


# Updates


def _updates(bench: Bench) -> Iterator[Result]:
    """Compare updates a second, from the first save until every row is right."""
    _clear(bench)
    with bench.clients.context():
        ndb.put_multi([source(Bare, 10**6 + number) for number in range(1_000)])
    took: dict[str, list[float]] = {"1": [], "inline": [], "recompute": []}
    for _ in range(ROUNDS):
        for design, times in took.items():
            start_count = _counted(bench, design)
            times.append(_run_to_the_end(bench, design))
            if design != "recompute" and _counted(bench, design) - start_count != SAVES:
                raise RuntimeError(f"{design}: {_counted(bench, design) - start_count} of {SAVES}")
    rates = {design: SAVES / statistics.median(times) for design, times in took.items()}
    rivals = {"inline": "source and aggregate in one transaction", "recompute": "a query each"}
    for rival, versus in rivals.items():
        yield Result(
            f"materialized_views.updates_per_s_versus_{rival}",
            rates["1"] / rates[rival],
            "ratio",
            versus,
            1.0 if rival == "inline" else None,
            raw={
                "ours_per_s": round(rates["1"], 1),
                "theirs_per_s": round(rates[rival], 1),
                "writers": CLIENTS,
                "rows": GRADES,
                "rounds": ROUNDS,
            },
        )


def _run_to_the_end(bench: Bench, design: str) -> float:
    """Save, wait until no update has a row, so all are applied, and return the seconds."""
    began = _run(bench, design, SAVES).began
    deadline = time.monotonic() + TIMEOUT_S
    while _waiting(bench):
        if time.monotonic() > deadline:
            raise RuntimeError("the updates were not applied")
        time.sleep(0.02)
    bench.queue.wait_idle(TIMEOUT_S)
    return time.time() - began


def _counted(bench: Bench, design: str) -> int:
    """Return the number of sources that the rows of a design count."""
    with bench.clients.context():
        if design == "1":
            views = GROUPS[1][1]
            return sum(row.count for row in views.read(bench.clients, ByGrade).rows)
        return sum(total.count for total in Total.query().fetch())


# Operations


def _operations(bench: Bench) -> Iterator[Result]:
    """Count the operations of a save, and of its update."""
    _pause(bench, paused=True)
    start_cost = bench.cost()
    _run(bench, "1", SAVES)
    _until_relayed(bench)
    saved = bench.cost() - start_cost
    _pause(bench, paused=False)
    bench.queue.wait_idle(TIMEOUT_S)
    both = bench.cost() - start_cost
    for work, spent in (("save", saved), ("apply", both - saved)):
        for field in fields(Cost):
            yield Result(
                f"materialized_views.{field.name}_per_{work}",
                getattr(spent, field.name) / SAVES,
                "operations",
                "one view, one row changed",
                at_least=False,
                raw={"saves": SAVES},
            )


# Reads


def _reads(bench: Bench) -> Iterator[Result]:
    """Compare a read of the view with a count of its sources."""
    views = GROUPS[1][1]
    stored = 0
    for size in SIZES:
        with bench.clients.context():
            if not stored:
                _clear_kind(Bare)
            for start in range(stored, size, 500):
                ndb.put_multi([source(Bare, 10**7 + i) for i in range(start, start + 500)])
            stored = size
            query = _read(bench, _count_by_query, rounds=1 if size > 1_000 else 5)
            view = _read(bench, lambda: views.read(bench.clients, ByGrade), rounds=20)
        raw = {"view_ms": view[0] * 1e3, "query_ms": query[0] * 1e3}
        raw |= {"view_reads": view[1], "query_reads": query[1]}
        yield Result(
            f"materialized_views.read_time_at_{size}",
            query[0] / view[0],
            "ratio",
            "the counting query",
            raw={name: round(value, 1) for name, value in raw.items()},
        )
        yield Result(
            f"materialized_views.reads_at_{size}",
            query[1] / view[1],
            "ratio",
            "the counting query",
            raw={name: round(value, 1) for name, value in raw.items()},
        )


def _count_by_query() -> dict[int, tuple[int, int]]:
    groups: dict[int, tuple[int, int]] = {}
    for member in Bare.query():
        count, points = groups.get(member.grade, (0, 0))
        groups[member.grade] = (count + 1, points + member.points)
    return groups


def _read(bench: Bench, act: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median seconds and the entity reads of an action."""
    start_cost = bench.read_meter.cost()
    times = [_timed(act) for _ in range(rounds)]
    return statistics.median(times), (bench.read_meter.cost() - start_cost).reads / rounds


# Clients


def _run(bench: Bench, design: str, saves: int) -> Load:
    """Save new sources."""
    path = f"/bench/{design}/{{}}"
    return counted(bench.port, path, min(CLIENTS, saves), new_numbers(saves))


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _until_relayed(bench: Bench) -> None:
    """Wait until no update is pending, or a task for them exists."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        counts = bench.queue.engine.counts().values()
        if not _waiting(bench) or any(states[state] for states in counts for state in UNDER_WAY):
            return
        time.sleep(0.02)
    raise RuntimeError("the outbox did not drain")


def _waiting(bench: Bench) -> int:
    with bench.clients.context():
        return len(OutboxTask.query().fetch(keys_only=True))


def _forget_updates(bench: Bench) -> None:
    """Drop the pending updates, as only their saves were measured."""
    bench.queue.engine.reset()
    with bench.clients.context():
        _clear_kind(OutboxTask)


def _pause(bench: Bench, *, paused: bool) -> None:
    client = bench.clients.tasks._client  # type: ignore[attr-defined]
    name = client.queue_path(PROJECT, LOCATION, "bench")
    (client.pause_queue if paused else client.resume_queue)(name=name)


def _clear(bench: Bench) -> None:
    with bench.clients.context():
        for kind in (Bare, Total):
            _clear_kind(kind)


def _clear_kind(kind: type[ndb.Model]) -> None:
    keys: Sequence[object] = kind.query().fetch(keys_only=True)
    for start in range(0, len(keys), 500):
        ndb.delete_multi(keys[start : start + 500])
