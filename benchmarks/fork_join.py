"""Fork-join queues: additions to one sum, against rival designs, in one run on one stack.

Over HTTP, by 1, 8 and 32 clients on kept connections, against gunicorn with two workers of 16
threads; clients, Cloud Tasks and the Datastore emulator share the machine with it. How the
designs differ: benchmarks/fork_join_app.py.
"""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

from benchmarks.fork_join_app import IN_MEMORY, SUMS, Addition, BareAddition, BenchSum
from benchmarks.results import Result
from benchmarks.stand import Bench, stand
from pipelines.rpc import Cost

DESIGNS = ("put", "inline", "slides", "fork-join", "at-once", "in-memory")
CLIENTS = (1, 8, 32)
# More than the app has threads: all of them are busy all the time.
FULL_LOAD = 64
SECONDS = 2.0
ROUNDS = 3
THREADS = 16
PACED_CLIENTS = 4
# The talk's table: items a second, and how long an insert took on App Engine in 2010.
TALK = {22: 223, 76: 258}
TIMEOUT_S = 120
BELOW_HTTP = 8


@dataclass
class Load:
    """What the clients saw: how many were accepted, in how long, and each latency."""

    seconds: float
    latencies_s: list[float]

    @property
    def per_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    def ms(self, share: float) -> float:
        """Return a percentile, in milliseconds."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    with stand("benchmarks.fork_join_app:serve()", is_cached=True, threads=THREADS) as bench:
        for design in DESIGNS:
            _closed(bench, design, 4, 1.0)
        _settle(bench)
        yield from _rates(bench)
        yield from _full_load(bench)
        yield from _paced(bench)
        yield from _below_http(bench)


# As fast as it goes


def _rates(bench: Bench) -> Iterator[Result]:
    """Compare accepted items a second, and how long an insert takes."""
    targets = {
        ("fork-join", "put", 1): 0.8,
        ("fork-join", "put", 8): 0.8,
        ("fork-join", "put", 32): 1.5,
        ("fork-join", "inline", 32): 10.0,
    }
    for clients in CLIENTS:
        loads: dict[str, list[Load]] = {design: [] for design in DESIGNS}
        for _ in range(ROUNDS):
            for design, found in loads.items():
                before = _folded(bench, design)
                load = _closed(bench, design, clients, SECONDS)
                _settle(bench)
                _check(design, _folded(bench, design) - before, len(load.latencies_s))
                found.append(load)
        for design in DESIGNS:
            for rival in ("put", "inline", "slides"):
                if design == rival or (rival != "put" and design != "fork-join"):
                    continue
                yield _compared(loads, design, rival, clients, targets)


def _compared(
    loads: dict[str, list[Load]],
    design: str,
    rival: str,
    clients: int,
    targets: dict[tuple[str, str, int], float],
) -> Result:
    ours, theirs = loads[design], loads[rival]
    return Result(
        f"fork_join.{design.replace('-', '_')}_versus_{rival}_at_{clients}",
        _median(ours, lambda load: load.per_s) / _median(theirs, lambda load: load.per_s),
        "ratio",
        {"put": "a bare put", "inline": "a transaction each", "slides": "the talk's code"}[rival],
        targets.get((design, rival, clients)),
        raw={
            "ours_per_s": round(_median(ours, lambda load: load.per_s)),
            "theirs_per_s": round(_median(theirs, lambda load: load.per_s)),
            "ours_p50_ms": round(_median(ours, lambda load: load.ms(0.5)), 1),
            "ours_p95_ms": round(_median(ours, lambda load: load.ms(0.95)), 1),
            "theirs_p50_ms": round(_median(theirs, lambda load: load.ms(0.5)), 1),
            "theirs_p95_ms": round(_median(theirs, lambda load: load.ms(0.95)), 1),
            "clients": clients,
            "rounds": ROUNDS,
        },
    )


def _median(loads: Sequence[Load], figure: Callable[[Load], float]) -> float:
    return statistics.median(figure(load) for load in loads)


def _check(design: str, folded: int, accepted: int) -> None:
    """Look whether a sum is right; the talk's code may lose and double, and is measured anyway."""
    if design in SUMS and design != "slides" and folded != accepted:
        raise RuntimeError(f"{design}: {accepted} were accepted, {folded} were folded")


# Operations


def _full_load(bench: Bench) -> Iterator[Result]:
    """Count what an item asks of the services when each thread of the app is busy."""
    for design in ("fork-join", "at-once"):
        counted = _count(bench, design, lambda d=design: _closed(bench, d, FULL_LOAD, 4.0))  # type: ignore[misc]
        name = design.replace("-", "_")
        yield from _bill(counted, f"fork_join.{name}_", "at_full_load", {"writes": 0.2})
        yield Result(
            f"fork_join.{name}_items_per_join_at_full_load",
            counted.items / max(1, counted.batches),
            "items",
            f"{FULL_LOAD} clients, one key",
            80 if design == "fork-join" else None,
            raw={"items": counted.items, "joins": counted.batches},
        )


@dataclass
class Counted:
    """What some items cost."""

    items: int
    batches: int
    cost: Cost
    cached: int
    load: Load


def _count(bench: Bench, design: str, act: Callable[[], Load]) -> Counted:
    _settle(bench)
    cost, cached, (_, batches) = _spent(bench), _cached(bench), _sum(bench, design)
    load = act()
    _settle(bench)
    return Counted(
        items=len(load.latencies_s),
        batches=_sum(bench, design)[1] - batches,
        cost=_spent(bench) - cost,
        cached=_cached(bench) - cached,
        load=load,
    )


def _bill(
    counted: Counted, prefix: str, suffix: str, targets: dict[str, float]
) -> Iterator[Result]:
    figures = {field.name: getattr(counted.cost, field.name) for field in fields(Cost)}
    for what, spent in {**figures, "cache_operations": counted.cached}.items():
        yield Result(
            f"{prefix}{what}_per_item_{suffix}",
            spent / counted.items,
            "operations",
            "one key",
            targets.get(what),
            at_least=False,
            raw={"items": counted.items},
        )


# At the talk's pace


def _paced(bench: Bench) -> Iterator[Result]:
    """Compare how long an insert takes at the talk's rates; count what it asks for."""
    for per_s, talk_ms in TALK.items():
        loads: dict[str, list[Load]] = {"put": [], "fork-join": [], "at-once": []}
        for _ in range(ROUNDS):
            for design, found in loads.items():
                found.append(_open(bench, design, per_s, 4.0))
                _settle(bench)
        put_ms = _median(loads["put"], lambda load: load.ms(0.5))
        for design in ("fork-join", "at-once"):
            ours_ms = _median(loads[design], lambda load: load.ms(0.5))
            yield Result(
                f"fork_join.{design.replace('-', '_')}_p50_at_{per_s}_per_s",
                ours_ms / put_ms,
                "ratio",
                "a bare put's",
                1.5 if (design, per_s) == ("fork-join", 76) else None,
                at_least=False,
                raw={
                    "ours_ms": round(ours_ms, 2),
                    "theirs_ms": round(put_ms, 2),
                    "talk_2010_ms": talk_ms,
                    "rounds": ROUNDS,
                },
            )
    counted = _count(bench, "fork-join", lambda: _open(bench, "fork-join", 76, 10.0))
    targets = {"writes": 2.1, "tasks": 0.02}
    yield from _bill(counted, "fork_join.fork_join_", "at_76_per_s", targets)


# Below HTTP


def _below_http(bench: Bench) -> Iterator[Result]:
    """Compare the in-memory fan-in with a bare put, eight threads in this process."""

    def per_s(act: Callable[[], object], seconds: float) -> float:
        counts: list[int] = []

        def work() -> None:
            ends_at, done = time.perf_counter() + seconds, 0
            with bench.clients.context():
                while time.perf_counter() < ends_at:
                    act()
                    done += 1
            counts.append(done)

        _side_by_side([work] * BELOW_HTTP)
        return sum(counts) / seconds

    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(per_s(lambda: BareAddition(amount=1).put(), SECONDS))
        ours.append(per_s(lambda: IN_MEMORY.add(bench.clients, "below", Addition(1)), SECONDS))
        with bench.clients.context():
            IN_MEMORY.flush(bench.clients)
    _settle(bench)
    yield Result(
        "fork_join.in_memory_below_http",
        statistics.median(ours) / statistics.median(theirs),
        "ratio",
        "a bare put",
        5.0,
        raw={
            "ours_per_s": round(statistics.median(ours)),
            "theirs_per_s": round(statistics.median(theirs)),
            "threads": BELOW_HTTP,
            "rounds": ROUNDS,
        },
    )


# Clients


def _closed(bench: Bench, design: str, clients: int, seconds: float) -> Load:
    """Send as fast as the answers come."""
    started = time.perf_counter()
    latencies: list[float] = []

    def client() -> None:
        with _Line(bench.port) as line:
            while time.perf_counter() < started + seconds:
                latencies.append(line.send(f"/bench/{design}"))

    _side_by_side([client] * clients)
    return Load(time.perf_counter() - started, latencies)


def _open(bench: Bench, design: str, per_s: int, seconds: float) -> Load:
    """Send at a rate, whatever the answers."""
    started = time.perf_counter()
    latencies: list[float] = []

    def client(first: int) -> None:
        with _Line(bench.port) as line:
            for number in range(first, int(per_s * seconds), PACED_CLIENTS):
                time.sleep(max(0.0, started + number / per_s - time.perf_counter()))
                latencies.append(line.send(f"/bench/{design}"))

    _side_by_side([lambda n=n: client(n) for n in range(PACED_CLIENTS)])  # type: ignore[misc]
    return Load(time.perf_counter() - started, latencies)


class _Line:
    """A kept connection; what lost its race is sent again, within the same latency."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def send(self, path: str) -> float:
        started = time.perf_counter()
        for _ in range(1_000):
            self._http.request("GET", path)
            answer = self._http.getresponse()
            answer.read()
            if answer.status == 204:
                return time.perf_counter() - started
            if answer.status != 409:
                raise RuntimeError(f"{path}: {answer.status}")
        raise RuntimeError(f"{path}: lost a thousand races")


def _side_by_side(acts: Sequence[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[act]) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# What became of it


def _settle(bench: Bench) -> None:
    """Wait until everything accepted is folded: past the in-memory window, and no task is left."""
    time.sleep(0.6)
    ends_at = time.monotonic() + TIMEOUT_S
    while bench.queue.engine.wake_at() is not None:
        if time.monotonic() > ends_at:
            raise RuntimeError("the queue does not empty")
        time.sleep(0.05)
    bench.queue.wait_idle(TIMEOUT_S)


def _sum(bench: Bench, design: str) -> tuple[int, int]:
    with bench.clients.context():
        row = BenchSum.get_by_id(design)
    return (row.items, row.batches) if row else (0, 0)


def _folded(bench: Bench, design: str) -> int:
    return _sum(bench, design)[0]


def _spent(bench: Bench) -> Cost:
    """Return the costs, once both workers have written down what they did last."""
    _closed(bench, "nothing", 4, 0.3)
    return bench.cost()


def _cached(bench: Bench) -> int:
    """Return how often both workers have asked memcached."""
    operations: dict[int, int] = {}
    line = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=60)
    for _ in range(50):
        # A new connection each time, so that both workers come to answer.
        line.close()
        line.request("GET", "/bench/cached")
        told = json.loads(line.getresponse().read())
        operations[told["pid"]] = told["operations"]
    line.close()
    return sum(operations.values())
