"""Each pattern compared with the code of its talk, on a profile of the cloud's latencies.

The stack of the other benchmarks runs on the Firestore emulator, which locks, with the latencies
and limits of a profile (rollforward/cloud_profile/cloud.toml or your own). So a design pays for
each round trip, and for each entity that many clients write. Every design gets the same items at
the same rate, until all of them are visible or LIMIT_S is over. In the latter case it has fallen
behind, and the lags shown are lower bounds. If a total of ours is not exact, the benchmark fails;
totals of the others are not checked.

At the end all demos run for some time, on the whole stack (benchmarks/cloud_demos.py).

    make bench LIKE=cloud
    make bench LIKE=cloud NAMES=cloud.counters
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from google.cloud import ndb

from benchmarks import cloud_demos
from benchmarks.batches.app import BenchDone
from benchmarks.continuations.app import ITEMS, NOTHING, PAGES, REQUEST, Receipt, Walk
from benchmarks.continuations.benchmark import addressee
from benchmarks.counters.app import COUNTERS
from benchmarks.counters.app import total as counted_by
from benchmarks.fan_in import benchmark as fan_in
from benchmarks.fork_join import benchmark as fork_join
from benchmarks.harness.load import new_numbers, paced
from benchmarks.harness.results import Result, percentile
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.lanes import fairness
from benchmarks.streams.app import HOPS, Arrived, BenchCount, count_each
from benchmarks.streams.load import numbered, push, readable
from rollforward import continuations
from rollforward.continuations.progress import progress
from rollforward.runtime import Cost
from rollforward.tasks.runs import UnknownRunError

PER_S, OFFERED_S, CLIENTS = 20.0, 12.0, 16
OFFERED = int(PER_S * OFFERED_S)
WALKED, MEMBERS = 300, 100
LIMIT_S = 45.0
LOOK_EVERY_S = 0.1
WARM_CLIENTS, WARM_S = 16, 6.0

# Runs a load and returns the time of each item's acceptance, by time.time().
Act = Callable[[], Sequence[float]]
Visible = Callable[[], int]


class WrongTotalError(Exception):
    """A design of ours has lost or doubled items, or has not finished."""


@dataclass(frozen=True)
class Run:
    """The outcome of the items of one design.

    Attributes:
        lags_s: Seconds from each acceptance until as many items were visible, or until the end.
        behind: The number of offered items that were not visible at the end.
    """

    offered: int
    behind: int
    per_s: float
    lags_s: Sequence[float]
    aborts: int
    cost: Cost

    def result(self, pattern: str, design: str, versus: str) -> Result:
        """Return the run as a result, with the other figures in `raw`."""
        done = max(1, self.offered - self.behind)
        bill = {name: round(spent / done, 2) for name, spent in self.cost.as_dict().items()}
        return Result(
            f"cloud.{pattern}.{design}_per_s",
            self.per_s,
            "items a second",
            versus,
            raw={
                "offered": self.offered,
                "behind": self.behind,
                "lag_p50_s": round(percentile(self.lags_s, 0.5), 2),
                "lag_p95_s": round(percentile(self.lags_s, 0.95), 2),
                "aborts_per_item": round(self.aborts / done, 2),
                **{f"{name}_per_item": figure for name, figure in bill.items()},
            },
        )


def measure(profile: Path, names: Sequence[str] = ()) -> Iterator[Result]:
    """Measure patterns on a profile, print a table of the runs, and use all demos.

    Args:
        names: The patterns to measure, as "cloud.counters"; empty: all.
    """
    patterns = {
        "counters": _counters,
        "views": _views,
        "fork_join": _fork_join,
        "continuations": _continuations,
        "batches": _batches,
        "streams": _streams,
    }
    results: list[Result] = []
    for pattern, measured in patterns.items():
        if _is_asked_for(pattern, names):
            for result in measured(profile):
                results.append(result)
                yield result
    print("\n".join(table(results)), file=sys.stderr)
    if _is_asked_for("lanes", names):
        yield from fairness.measure_like(profile)
    if _is_asked_for("demos", names):
        yield from cloud_demos.measure(profile)


def _is_asked_for(pattern: str, names: Sequence[str]) -> bool:
    return not names or any(f"cloud.{pattern}".startswith(name) for name in names)


def table(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of a Markdown table of runs."""
    columns = "a second | lag p50, p95 (s) | behind | aborts | reads | writes | tasks"
    yield f"| | {columns} | round trips |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for result in results:
        raw = result.raw
        at_least = "≥ " if raw["behind"] else ""
        name = result.name.removeprefix("cloud.").removesuffix("_per_s")
        figures = [
            f"{raw[f'{operation}_per_item']:g}"
            for operation in ("aborts", "reads", "writes", "tasks")
        ]
        lags = f"{at_least}{raw['lag_p50_s']:g}, {at_least}{raw['lag_p95_s']:g}"
        behind = f"{raw['behind']} of {raw['offered']}" if raw["behind"] else ""
        cells = [f"`{name}`, {result.versus}", f"{result.value:.3g}", lags, behind, *figures]
        yield f"| {' | '.join(cells)} | {raw['round_trips_per_item']:g} |"


# Watching


def _watched(
    bench: Bench, act: Act, visible: Visible, offered: int, *, is_ours: bool = True
) -> Run:
    """Offer items, poll until all are visible or LIMIT_S is over, and return the outcome.

    Raises:
        WrongTotalError: a design of ours has too few or too many items at the end.
    """
    baseline, cost, aborts = visible(), bench.cost(), bench.aborts()
    accepted: list[Sequence[float]] = []
    load = threading.Thread(target=lambda: accepted.append(act()))
    looks = [(time.time(), 0)]
    load.start()
    while looks[-1][1] < offered and looks[-1][0] < looks[0][0] + LIMIT_S:
        time.sleep(LOOK_EVERY_S)
        looks.append((time.time(), visible() - baseline))
    load.join()
    if is_ours:
        with contextlib.suppress(TimeoutError):
            bench.queue.wait_idle(LIMIT_S)
        seen, acknowledged = visible() - baseline, len(accepted[0])
        if not acknowledged <= seen <= offered:  # Items without an answer may count.
            raise WrongTotalError(f"{acknowledged} of {offered} were accepted, {seen} are visible")
    spent, lost = bench.cost() - cost, bench.aborts() - aborts
    bench.queue.engine.reset()  # Drops the tasks of a design that has fallen behind.
    return _run(looks, accepted[0], offered, lost, spent)


def _run(
    looks: Sequence[tuple[float, int]],
    accepted: Sequence[float],
    offered: int,
    aborts: int,
    cost: Cost,
) -> Run:
    began, (ended, seen) = looks[0][0], looks[-1]
    lags, remaining = [], iter(looks)
    at, count = next(remaining)
    for number, accepted_at in enumerate(sorted(accepted), 1):
        while count < number and (look := next(remaining, None)) is not None:
            at, count = look
        lags.append(max(0.0, (at if count >= number else ended) - accepted_at))
    behind = max(0, offered - seen)
    # An item that was not accepted counts as waiting from its offer until the end.
    lags += [ended - began - n / PER_S for n in range(len(accepted), offered)]
    return Run(offered, behind, min(seen, offered) / (ended - began), lags, aborts, cost)


@contextlib.contextmanager
def _stack(
    subject: str, profile: Path, warm: Sequence[str] = (), **options: Any
) -> Iterator[Bench]:
    """Run an app with the profile, and warm up its instances."""
    testbed = open_testbed(
        f"benchmarks.{subject}.app:serve()",
        is_cached=True,
        emulator="firestore",
        profile=profile,
        **options,
    )
    with testbed as bench:
        for path in warm:
            numbers = new_numbers(int(PER_S * WARM_S))
            paced(bench.port, path, WARM_CLIENTS, PER_S, numbers, give_up_s=WARM_S)
        _rest(bench)
        yield bench


def _rest(bench: Bench) -> None:
    """Wait until the warm-up is folded."""
    time.sleep(1.0)
    with contextlib.suppress(TimeoutError):
        bench.queue.wait_idle(LIMIT_S, with_scheduled=True)


def _sent(bench: Bench, path: str) -> Act:
    """Return a load that sends the items to a path, whose "{}" is an item's number."""

    def act() -> Sequence[float]:
        load = paced(bench.port, path, CLIENTS, PER_S, new_numbers(OFFERED), give_up_s=LIMIT_S)
        return [load.began + end_s for end_s in load.ends_s]

    return act


# Patterns


def _counters(profile: Path) -> Iterator[Result]:
    """Measure one count: ours, the talk's twenty shards, and one row."""
    designs = {
        "adaptive": "exact, from one shard, which conflicts double",
        "adaptive again": "the same, with the shards that it has found",
        "gathered": "by a fork-join queue",
        "twenty-shards": "the talk's code",
        "one-row": "a transaction on one row",
    }
    with _stack("counters", profile, ["/bench/idle"]) as bench:
        for design, versus in designs.items():
            way = design.partition(" ")[0]

            def visible(way: str = way) -> int:
                with bench.clients.context():
                    return counted_by(bench.clients, way)

            is_ours = way in COUNTERS
            act = _sent(bench, f"/bench/{way}?n={{}}")
            run = _watched(bench, act, visible, OFFERED, is_ours=is_ours)
            yield run.result("counters", _name(design), versus)


def _views(profile: Path) -> Iterator[Result]:
    """Measure updates of 2 rows, of 12, and of 100."""
    versus = {
        "paced": "folded, a row about once a second",
        "talk": "the talk's code: a task an update",
        "inline": "one transaction for source and row",
    }
    rivals = {2: "talk", 12: "inline", 100: "talk"}
    with _stack("fan_in", profile, ["/bench/paced/7/7"]) as bench:
        for rows, rival in rivals.items():
            for design in ("paced", rival):
                act = _sent(bench, f"/bench/{design}/{rows}/{{}}")
                visible = partial(fan_in.visible, bench, design, rows)
                run = _watched(bench, act, visible, OFFERED, is_ours=design == "paced")
                yield run.result(f"views_{rows}", design, versus[design])


def _fork_join(profile: Path) -> Iterator[Result]:
    """Measure additions to one sum."""
    designs = {
        "fork-join": "ours",
        "slides": "the talk's code",
        "inline": "a transaction each",
    }
    with _stack("fork_join", profile, ["/bench/put"]) as bench:
        for design, versus in designs.items():
            act = _sent(bench, f"/bench/{design}?n={{}}")
            visible = partial(fork_join.folded, bench, design)
            run = _watched(bench, act, visible, OFFERED, is_ours=design == "fork-join")
            yield run.result("fork_join", _name(design), versus)


def _continuations(profile: Path) -> Iterator[Result]:
    """Measure a walk over items, all of which count as accepted at its start."""
    with _stack("continuations", profile) as bench:
        with bench.clients.context():
            ndb.put_multi([addressee(number) for number in range(WALKED)])
        _walked(bench, "items")  # Starts the instances.
        for design, versus in {
            "pages": "pages of 100",
            "items": "one task an item",
            "request": "one long request",
        }.items():
            run = _walked(bench, design)
            yield run.result("continuations", design, versus)


def _walked(bench: Bench, design: str) -> Run:
    walk = Walk(secrets.token_hex(8), "g", NOTHING)

    def act() -> Sequence[float]:
        clients = bench.writer
        began = time.time()
        with clients.context():
            if design == "pages":
                continuations.start(clients, PAGES, walk, run_id=walk.run_id, expected=WALKED)
            else:
                {"items": ITEMS, "request": REQUEST}[design].enqueue(clients, walk)
        return [began] * WALKED

    def visible() -> int:
        with bench.clients.context():
            if design == "pages":
                with contextlib.suppress(UnknownRunError):
                    return progress(walk.run_id, dots=False).totals.done
                return 0
            low, high = ndb.Key(Receipt, f"{walk.run_id}:"), ndb.Key(Receipt, f"{walk.run_id};")
            query = Receipt.query(Receipt._key > low, Receipt._key < high)
            return len(query.fetch(keys_only=True))

    return _watched(bench, act, visible, WALKED, is_ours=design == "pages")


def _batches(profile: Path) -> Iterator[Result]:
    """Measure a hundred members and one callback; all are visible once the batch is complete."""
    designs = {"ours": "a fork-join queue", "article": "the article's code"}
    with _stack("batches", profile, at_once=64) as bench:
        _batch(bench, "ours", is_ours=True)  # Starts the instances.
        for design, versus in designs.items():
            run = _batch(bench, design, is_ours=design == "ours")
            yield run.result("batches", design, versus)


def _batch(bench: Bench, design: str, *, is_ours: bool) -> Run:
    batch = secrets.token_hex(8)

    def act() -> Sequence[float]:
        began = time.time()
        path = f"/bench/{design}/{batch}?count={MEMBERS}"
        paced(bench.port, path, 1, 1.0, range(1), give_up_s=2 * LIMIT_S)
        return [began] * MEMBERS

    def visible() -> int:
        with bench.clients.context():
            return MEMBERS if BenchDone.get_by_id(f"{design}:{batch}") else 0

    return _watched(bench, act, visible, MEMBERS, is_ours=is_ours)


def _streams(profile: Path) -> Iterator[Result]:
    """Measure records that are pushed ten at a time and counted by key."""
    with _stack("streams", profile) as bench:
        for start in (0, OFFERED):  # The first run starts the instances.
            act = partial(_push, bench, start)
            run = _watched(bench, act, lambda: len(readable(bench)), OFFERED)
        yield run.result("streams", "pushed", "an exact stage")
        run = _watched(
            bench, partial(_enqueue, bench), partial(_each, bench), OFFERED, is_ours=False
        )
        yield run.result("streams", "task_each", "one task and one transaction a record")


def _push(bench: Bench, start: int) -> Sequence[float]:
    """Push records at a fixed rate; return the time of each acceptance."""
    slow, size, accepted = replace(bench, clients=bench.writer), 10, list[float]()
    began = time.time()
    for begin in range(0, OFFERED, size):
        time.sleep(max(0.0, began + begin / PER_S - time.time()))
        now_ms = int(time.time() * 1000)
        push(slow, HOPS, [numbered(start + begin + n, now_ms) for n in range(size)])
        accepted += [time.time()] * size
    return accepted


def _enqueue(bench: Bench) -> Sequence[float]:
    """Enqueue a task for each record at a fixed rate, over ten keys as hot as a window's."""
    size, accepted = 10, list[float]()
    began = time.time()
    with bench.writer.context():
        for begin in range(0, OFFERED, size):
            time.sleep(max(0.0, began + begin / PER_S - time.time()))
            records = [Arrived(f"k{n}", 0) for n in range(size)]
            count_each.enqueue_many(bench.writer, records)
            accepted += [time.time()] * size
    return accepted


def _each(bench: Bench) -> int:
    with bench.clients.context():
        return sum(row.count for row in BenchCount.query().fetch())


def _name(design: str) -> str:
    return design.replace("-", "_").replace(" ", "_")
