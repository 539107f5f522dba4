"""Profiles of processor time and of waiting, as a flame graph and a table.

    make profile NAME=insert            one request of the app, repeated
    make profile NAME=fork_join         any benchmark, as a whole

py-spy samples the app's workers from outside, so the app is measured unchanged. For requests it
samples three times under load: the thread that holds Python's lock, all threads in a request, and
the lock's holder again for the picture. For a benchmark it samples all Python processes until the
end.

The table assigns each sample to the innermost package on its stack; the standard library counts for
its caller, except JSON and logging. The first table excludes processor time without Python's lock:
calls of the operating system, and gRPC's own threads.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.load import Load
from benchmarks.inserts.app import WORKLOADS
from benchmarks.inserts.benchmark import open_inserts

FOLDER = Path(".dev/profiles")
SPY = Path(sys.executable).with_name("py-spy")
CLIENTS, SECONDS, PER_S = 32, 8, 100
# Until py-spy samples, and until it has written: on a busy machine.
START_S = 5
MIN_SHARE = 0.003
# Threads that answer a request have this frame.
REQUEST = "wsgi_app ("
# A package's name in the table, by a pattern of its files' paths; the first match counts.
PACKAGES = (
    ("JSON", r"/json/(encoder|decoder|__init__|scanner)\.py"),
    ("logging", r"/logging/"),
    ("gunicorn", r"/gunicorn/"),
    ("Werkzeug", r"/werkzeug/"),
    ("Flask", r"site-packages/(flask|jinja2|itsdangerous|blinker)/"),
    ("pydantic", r"/pydantic"),
    ("ndb", r"/google/cloud/ndb/"),
    ("Datastore's client", r"/google/(cloud/datastore|api_core|auth)|/proto/"),
    ("protobuf", r"/google/protobuf/"),
    ("gRPC", r"/grpc/"),
    ("memcached's client", r"/pymemcache/"),
    ("OpenTelemetry", r"/opentelemetry/"),
    ("rollforward/{}", r"/rollforward/(\w+)/"),
    ("the app: {}", r"/(handlers|pipelines|models|benchmarks)/"),
)


def main() -> int:
    """Profile the named benchmark or request."""
    parser = argparse.ArgumentParser(prog="make profile")
    parser.add_argument("name", help=f"a benchmark, or {', '.join(WORKLOADS)}")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of each sampling")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    chosen = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if chosen.name in WORKLOADS:
        _profile_requests(chosen.name, chosen.clients, chosen.seconds)
    else:
        _profile_benchmark(chosen.name)
    return 0


# Requests


def _profile_requests(name: str, clients: int, seconds: int) -> None:
    picture = FOLDER / f"{name}.svg"
    with open_inserts() as bench:
        bench.load(name, clients, 2.0)
        with _under_load(lambda: bench.load(name, clients, 3 * (seconds + START_S))) as loads:
            pids = bench.workers()
            computing = _looked(pids, seconds, "--gil")
            waiting = _looked(pids, seconds, "--idle")
            _record(pids[:1], seconds, picture, "--gil", "--format", "flamegraph")
    [load] = loads
    requests = load.per_s * seconds
    print(f"\n{name}: {load.per_s:.0f} requests/s by {clients} clients, p50 {load.ms(0.5):.1f} ms")
    print("\nProcessor time with Python's lock, by package, in milliseconds a request:\n")
    print(_table(computing, requests))
    in_request = Counter({s: n for s, n in waiting.items() if REQUEST in s})
    print("\nRequests, waiting included, by package, in milliseconds a request:\n")
    print(_table(in_request, requests))
    print(f"\nFlame graph of a worker's processor time: {picture}")


@contextmanager
def _under_load(act: Callable[[], Load]) -> Iterator[list[Load]]:
    """Send requests during the block; on exit the list has the clients' measurements."""
    loads: list[Load] = []
    thread = threading.Thread(target=lambda: loads.append(act()))
    thread.start()
    try:
        yield loads
    finally:
        thread.join()


def _looked(pids: Sequence[int], seconds: int, *options: str) -> Counter[str]:
    """Sample some processes; return the number of samples of each stack."""
    path = FOLDER / "looked"
    _record(pids, seconds, path, *options, "--format", "raw")
    return _stacks(path.parent.glob(f"{path.name}*.part"))


def _record(pids: Sequence[int], seconds: int, path: Path, *options: str) -> None:
    """Sample some processes concurrently."""
    spies = []
    for pid in pids:
        output = (
            path if len(pids) == 1 and path.suffix else path.with_name(f"{path.name}{pid}.part")
        )
        command = [SPY, "record", "--pid", str(pid), "--duration", str(seconds), *options]
        command += ["--nonblocking", "--full-filenames", "--rate", str(PER_S)]
        command += ["--output", str(output)]
        spies.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for spy in spies:
        _, errors = spy.communicate()
        if spy.returncode:
            raise RuntimeError(errors.decode().strip()[-500:])


# Benchmarks


def _profile_benchmark(name: str) -> None:
    raw, picture = FOLDER / f"{name}.txt", FOLDER / f"{name}.svg"
    for path, form in ((raw, "raw"), (picture, "flamegraph")):
        command = [SPY, "record", "--subprocesses", "--gil", "--nonblocking", "--full-filenames"]
        command += ["--rate", str(PER_S), "--format", form, "--output", str(path), "--"]
        subprocess.run([*command, sys.executable, "-m", "benchmarks", name], check=True)
    print("\nProcessor time with Python's lock, of benchmark and app, by package, in seconds:\n")
    print(_table(_stacks([raw]), 1_000))
    print(f"\nFlame graph: {picture}")


# Tables


@dataclass(frozen=True)
class Share:
    """A package's share of the samples."""

    package: str
    samples: int


def _stacks(paths: Sequence[Path] | Iterator[Path]) -> Counter[str]:
    """Read stacks and their counts from partial files, and delete the files."""
    stacks = Counter[str]()
    for path in paths:
        for line in path.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            stacks[stack] += int(count)
        if path.suffix == ".part":
            path.unlink()
    return stacks


def shares(stacks: Counter[str]) -> list[Share]:
    """Return the number of samples of each package, in descending order."""
    packages = Counter[str]()
    for stack, count in stacks.items():
        packages[package_of(stack)] += count
    return [Share(package, count) for package, count in packages.most_common()]


def package_of(stack: str) -> str:
    """Return the innermost package of a stack, whose frames are separated by semicolons.

    >>> package_of("run (/x/gunicorn/worker.py:1);wait (/usr/lib/python3.12/threading.py:2)")
    'gunicorn'
    """
    for frame in reversed(stack.split(";")):
        for name, pattern in PACKAGES:
            if match := re.search(pattern, frame):
                return name.format(*match.groups())
    return "Python"


def _table(stacks: Counter[str], requests: float) -> str:
    total = sum(stacks.values()) or 1
    lines = ["| package | share | ms |", "|---|---:|---:|"]
    for share in shares(stacks):
        if share.samples / total >= MIN_SHARE:
            ms = 1_000 * share.samples / PER_S / requests
            lines.append(f"| {share.package} | {share.samples / total:.1%} | {ms:.3f} |")
    lines.append(f"| together | 100% | {1_000 * total / PER_S / requests:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
