"""A profile: a dated file of numbers, each with its source or marked as a guess.

The form of the file, of which `cloud.toml` is one:

    name = "cloud"
    dated = 2026-11-24
    about = "one sentence"
    seed = 7                                    # optional: each process draws the same latencies

    [sources]
    numbers = "our project, /numbers, run 3f..., us-central1, 40 samples a call"

    [calls.commit]                              # each of CALLS
    p50_ms = { value = 31.5, source = "numbers" }
    p95_ms = { value = 75, guess = "why this and no other" }
    p99_ms = { value = 104.5, source = "numbers" }
    per_item_ms = { value = 0.42, source = "numbers" }   # optional: for each further entity

    [entity_writes]                             # and the other tables of TABLES
    per_s = { value = 1, source = "numbers" }

The probes of /numbers fill the calls that `FROM_PROBES` names.
"""

from __future__ import annotations

import datetime
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any

BUNDLED = Path(__file__).with_name("cloud.toml")

# Remote calls, any of which pauses now and then; then a start, and how long a pause is.
REMOTE = (
    *("lookup", "query", "commit", "begin_transaction", "rollback"),
    *("create_task", "create_named_task", "dispatch", "memcached"),
)
CALLS = (*REMOTE, "cold_start", "pause")
TABLES: Mapping[str, tuple[str, ...]] = {
    "pauses": ("share",),
    "entity_writes": ("per_s", "window_s", "max_wait_s", "abort_after_s"),
    "ramp": ("start_per_s", "growth", "every_s"),
    "queues": ("start_per_s", "growth", "every_s", "idle_s"),
    "instances": ("most", "requests_at_once", "idle_s"),
}
PERCENTILES = ("p50_ms", "p95_ms", "p99_ms")
PER_ITEM = "per_item_ms"
# The calls that a probe of /numbers measures, by the probe's name. What takes a task from its
# creation to its run is "enqueue-to-run" less "create_task"; a transaction is all of its calls.
FROM_PROBES: Mapping[str, str] = {
    "lookup": "get",
    "query": "query",
    "commit": "put",
    "memcached": "memcached",
    "dispatch": "enqueue-to-run",
    "begin_transaction": "transaction",
}
# Beyond this share of all calls a latency grows no more.
LAST_SHARE = 0.9999
_AT = tuple(NormalDist().inv_cdf(share) for share in (0.5, 0.95, 0.99))


class ProfileError(ValueError):
    """A file is no profile; the text names the mistake."""


@dataclass(frozen=True)
class Number:
    """A number, and why it is this one: a published source, or a guess."""

    value: float
    reason: str
    is_guess: bool


@dataclass(frozen=True)
class Latency:
    """A distribution through three percentiles: lognormal in each piece between them."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    per_item_ms: float = 0.0

    def at(self, share: float) -> float:
        """Return the milliseconds that so large a share of the calls does not exceed.

        >>> [round(Latency(10, 40, 100).at(share)) for share in (0.05, 0.5, 0.95, 0.99)]
        [2, 10, 40, 100]
        """
        z = NormalDist().inv_cdf(min(max(share, 1 - LAST_SHARE), LAST_SHARE))
        logs = [math.log(ms) for ms in (self.p50_ms, self.p95_ms, self.p99_ms)]
        segment = 0 if z <= _AT[1] else 1
        slope = (logs[segment + 1] - logs[segment]) / (_AT[segment + 1] - _AT[segment])
        return math.exp(logs[segment] + slope * (z - _AT[segment]))


@dataclass(frozen=True)
class Profile:
    """Latencies and limits of the services that an emulator replaces.

    Attributes:
        calls: The latencies, by the names in CALLS.
        numbers: All numbers, by their names in the file: "entity_writes.per_s".
        seed: Seed of the draws of each process; None: they differ.
    """

    name: str
    dated: datetime.date
    about: str
    seed: int | None
    calls: Mapping[str, Latency]
    numbers: Mapping[str, Number]

    def __getitem__(self, name: str) -> float:
        return self.numbers[name].value

    def random(self) -> Random:
        """Return the random generator of a process's latencies."""
        return Random(self.seed)

    def draw(self, call: str, random: Random, items: int = 1) -> float:
        """Return how many seconds a call takes.

        Args:
            call: One of CALLS.
            random: The source of the draw; equal sources draw equal latencies.
            items: How many entities or tasks it is about.
        """
        latency = self.calls[call]
        ms = latency.at(random.random()) + latency.per_item_ms * max(0, items - 1)
        if call in REMOTE and random.random() < self["pauses.share"]:
            ms += self.calls["pause"].at(random.random())
        return ms / 1000

    def allowed_per_s(self, table: str, elapsed_s: float) -> float:
        """Return the traffic that "ramp" or "queues" allows some seconds after it began."""
        steps = max(0.0, elapsed_s) // self[f"{table}.every_s"]
        return float(self[f"{table}.start_per_s"] * (1 + self[f"{table}.growth"]) ** steps)

    def describe(self) -> str:
        """Return a description in one line, for the console."""
        guesses = sum(number.is_guess for number in self.numbers.values())
        return (
            f"latencies as in {self.name} of {self.dated}: {len(self.numbers)} numbers, "
            f"{guesses} of them guesses"
        )


def load(path: Path) -> Profile:
    """Return the profile of a file.

    Raises:
        ProfileError: the file is missing, or is no profile.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return _profile(content)
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ProfileError) as error:
        raise ProfileError(f"{path} is no profile: {error}") from error


def _profile(content: dict[str, Any]) -> Profile:
    _check_names(
        "the file", content, {"name", "dated", "about", "sources", "calls", *TABLES}, {"seed"}
    )
    for name, kind in {"name": str, "dated": datetime.date, "about": str, "sources": dict}.items():
        if not isinstance(content[name], kind):
            raise ProfileError(f"{name} must be a {kind.__name__}, got {content[name]!r}")
    seed = content.get("seed")
    if seed is not None and not _is_number(seed, int):
        raise ProfileError(f"seed must be a whole number, got {seed!r}")
    numbers = dict(_numbers(content))
    return Profile(
        content["name"],
        content["dated"],
        content["about"],
        seed,
        {call: _latency(call, numbers) for call in CALLS},
        numbers,
    )


def _numbers(content: Mapping[str, Any]) -> list[tuple[str, Number]]:
    """Return all numbers with their names, each of them checked."""
    numbers = []
    calls = _table("calls", content["calls"], set(CALLS), set())
    for call, table in calls.items():
        numbers.append(
            (f"calls.{call}", _table(f"calls.{call}", table, set(PERCENTILES), {PER_ITEM}))
        )
    for name, fields in TABLES.items():
        numbers.append((name, _table(name, content[name], set(fields), set())))
    return [
        (f"{name}.{field}", _number(f"{name}.{field}", value, content["sources"]))
        for name, table in numbers
        for field, value in table.items()
    ]


def _table(name: str, value: Any, needed: set[str], allowed: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProfileError(f"{name} must be a table, got {value!r}")
    _check_names(name, value, needed, allowed)
    return value


def _check_names(where: str, table: Mapping[str, Any], needed: set[str], allowed: set[str]) -> None:
    if absent := sorted(needed - set(table)):
        raise ProfileError(f"{where} must have {', '.join(absent)}")
    if unknown := sorted(set(table) - needed - allowed):
        raise ProfileError(f"{where} must have no {', '.join(unknown)}")


def _number(name: str, value: Any, sources: Mapping[str, Any]) -> Number:
    if not isinstance(value, dict) or set(value) not in ({"value", "source"}, {"value", "guess"}):
        raise ProfileError(
            f"{name} must have a value, and either a source or a guess, got {value!r}"
        )
    number = value["value"]
    if not _is_number(number, int | float) or not 0 < number < math.inf:
        raise ProfileError(f"{name} must be a number above 0, got {number!r}")
    is_guess = "guess" in value
    why = value["guess"] if is_guess else sources.get(value["source"])
    if not isinstance(why, str) or not why.strip():
        rule = "guess must be a reason" if is_guess else "source must be one of [sources]"
        raise ProfileError(f"{name}: its {rule}, got {value['guess' if is_guess else 'source']!r}")
    return Number(float(number), why, is_guess)


def _latency(call: str, numbers: Mapping[str, Number]) -> Latency:
    p50, p95, p99 = (numbers[f"calls.{call}.{share}"].value for share in PERCENTILES)
    if not p50 <= p95 <= p99:
        raise ProfileError(
            f"calls.{call} must have p50_ms <= p95_ms <= p99_ms, got {p50}, {p95}, {p99}"
        )
    per_item = numbers.get(f"calls.{call}.{PER_ITEM}")
    return Latency(p50, p95, p99, per_item.value if per_item else 0.0)


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
