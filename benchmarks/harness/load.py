"""Clients on persistent connections, in a cheap process of their own.

Code in the process of the clients shares the interpreter lock with them and would be measured,
too. So `closed` and `paced` start this module as a program, which prints its measurements as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from benchmarks.harness.results import Result, percentile, quartiles

# A request that lost a race is retried, within the same latency.
MAX_RACES = 1_000
ACCEPTED, LOST_RACE = (200, 202, 204), 409
# A patient client retries these, too: a service was unavailable, or the server is too busy.
TRY_AGAIN = (429, 500, 503)
_NUMBERS = itertools.count()


@dataclass
class Load:
    """The measurements of the clients.

    Attributes:
        began: The start, by time.time().
        seconds: The duration.
        latencies_s: The latency of each answer.
        ends_s: The seconds from the start until each answer, in ascending order.
    """

    began: float
    seconds: float
    latencies_s: list[float]
    ends_s: list[float]

    @property
    def per_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    def ms(self, share: float) -> float:
        """Return a percentile, in milliseconds."""
        return percentile(self.latencies_s, share) * 1000


def new_numbers(count: int) -> range:
    """Return numbers that this process has not used before."""
    used = list(itertools.islice(_NUMBERS, count))
    return range(used[0], used[-1] + 1)


def closed(port: int, path: str, clients: int, seconds: float) -> Load:
    """GET a path in a closed loop: each client sends its next request once it has an answer."""
    return _run(port, path, "--clients", clients, "--seconds", seconds)


def posted(
    port: int, path: str, clients: int, seconds: float, body: str, *, kind: str = "", key: str = ""
) -> Load:
    """POST a body in a closed loop.

    Args:
        kind: The body's Content-Type; "": JSON.
        key: Prefix of the Idempotency-Key of each request; "": they have none.
    """
    options = ["--body", body, "--kind", kind or "application/json", "--key", key]
    return _run(port, path, "--clients", clients, "--seconds", seconds, *options)


def counted(port: int, path: str, clients: int, numbers: range) -> Load:
    """GET a path once for each number, which replaces its "{}", in a closed loop."""
    start, count = numbers.start, len(numbers)
    return _run(port, path, "--clients", clients, "--first", start, "--requests", count)


def paced(
    port: int,
    path: str,
    clients: int,
    per_s: float,
    numbers: range,
    *,
    give_up_s: float = float("inf"),
) -> Load:
    """GET a path once for each number, at a fixed rate that does not depend on the answers.

    Args:
        give_up_s: The time limit. After it the clients send nothing and wait for nothing, and the
            result has the requests that were answered before. Server errors are retried.
    """
    start, count = numbers.start, len(numbers)
    return _run(
        port,
        path,
        *("--clients", clients, "--per-s", per_s, "--first", start, "--requests", count),
        *("--give-up-s", give_up_s),
    )


def rates_compared(
    name: str,
    ours: Sequence[Load],
    theirs: Sequence[Load],
    versus: str,
    target: float | None,
    **raw: object,
) -> Result:
    """Return the ratio of two designs' requests per second, by the medians of their loads."""
    figures = {
        f"{side}_{measure}": quartiles([figure(load) for load in loads])
        for side, loads in (("ours", ours), ("theirs", theirs))
        for measure, figure in _FIGURES.items()
    }
    ratio = statistics.median(load.per_s for load in ours) / statistics.median(
        load.per_s for load in theirs
    )
    return Result(name, ratio, "ratio", versus, target, raw={**figures, **raw})


_FIGURES: dict[str, Callable[[Load], float]] = {
    "per_s": lambda load: load.per_s,
    "p50_ms": lambda load: load.ms(0.5),
    "p95_ms": lambda load: load.ms(0.95),
}


def _run(port: int, path: str, *arguments: object) -> Load:
    command = [
        sys.executable,
        "-m",
        "benchmarks.harness.load",
        str(port),
        path,
        *map(str, arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return Load(**json.loads(done.stdout))


# The program


def main() -> int:
    """Send the requests, and print the clients' measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harness.load")
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--requests", type=int, default=0, help="0: until the time is over")
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--give-up-s", type=float, default=float("inf"))
    parser.add_argument("--per-s", type=float, default=0.0, help="0: as fast as the answers come")
    parser.add_argument("--body", default="", help="the body to POST; empty: GET")
    parser.add_argument("--kind", default="application/json", help="the body's Content-Type")
    parser.add_argument("--key", default="", help="prefix of the Idempotency-Keys")
    print(json.dumps(asdict(asyncio.run(_send(parser.parse_args())))))
    return 0


async def _send(chosen: argparse.Namespace) -> Load:
    began, started = time.time(), time.perf_counter()
    numbers = itertools.islice(itertools.count(chosen.first), chosen.requests or None)
    latencies: list[float] = []
    ends: list[float] = []
    is_patient = chosen.give_up_s < float("inf")

    async def client() -> None:
        async with _line(chosen, is_patient=is_patient) as ask:
            for number in numbers:
                if chosen.per_s:
                    at = started + (number - chosen.first) / chosen.per_s
                    await asyncio.sleep(max(0.0, at - time.perf_counter()))
                elif time.perf_counter() > started + chosen.seconds:
                    return
                latencies.append(await ask(number))
                ends.append(time.perf_counter() - started)

    async def until_given_up() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(chosen.give_up_s if is_patient else None):
                await client()

    async with asyncio.TaskGroup() as group:
        for _ in range(chosen.clients):
            group.create_task(until_given_up())
    return Load(began, time.perf_counter() - started, latencies, ends)


@asynccontextmanager
async def _line(
    chosen: argparse.Namespace, *, is_patient: bool
) -> AsyncIterator[Callable[[int], Awaitable[float]]]:
    """Keep a connection open; each answer is read to its end before the next request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", chosen.port)

    async def ask(number: int) -> float:
        began, request = time.perf_counter(), _request(chosen, number)
        for _ in range(MAX_RACES):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            await reader.readexactly(_length(head))
            if status in ACCEPTED:
                return time.perf_counter() - began
            if status != LOST_RACE and not (is_patient and status in TRY_AGAIN):
                raise RuntimeError(f"{chosen.path}: {status}")
        raise RuntimeError(f"{chosen.path}: lost a thousand races")

    try:
        yield ask
    finally:
        writer.close()


def _request(chosen: argparse.Namespace, number: int) -> bytes:
    path = chosen.path.format(number)
    if not chosen.body:
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    body = chosen.body.encode()
    key = f"Idempotency-Key: {chosen.key}{number}\r\n" if chosen.key else ""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {chosen.kind}\r\n{key}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
