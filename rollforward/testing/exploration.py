"""Exploration of a test's own scenario: every remote call is broken in every way, one per play.

The tests of this library use the same plays (`explorer.py`). The scenario, the
check and the app belong to the user. FAULTS are the ways to break a call, or a whole play:

    error         the call fails before it takes effect
    reply-lost    it takes effect, and the caller sees an error
    crash-before  the worker dies before it
    crash-after   the worker dies after it
    overlap       the task that makes the call is delivered again meanwhile, to its end
    doubled       each task is delivered twice
    together      all due tasks are delivered at the same moment, each of them twice
    meanwhile     another visitor acts to the end while the call waits, if the test has one

A call without an effect (a query) is broken before it only. On the emulator that locks
there is no `overlap` and no `meanwhile`: the inner work would wait for the outer, which waits for
it.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pytest

from rollforward.testing import report
from rollforward.testing.calls import APP, CACHE, SERVICES, RemoteCall
from rollforward.testing.explorer import Player
from rollforward.testing.injection import (
    CRASH_AFTER,
    CRASH_BEFORE,
    ERROR,
    FAILURES,
    MEANWHILE,
    OVERLAP,
    REPLY_LOST,
    UNKNOWN_OUTCOMES,
    Crash,
)
from rollforward.testing.world import NotHealedError, apart, in_threads

if TYPE_CHECKING:
    from rollforward.testing.kit import Rollforward

DOUBLED, TOGETHER = "doubled", "together"
FAULTS = (ERROR, REPLY_LOST, CRASH_BEFORE, CRASH_AFTER, OVERLAP, MEANWHILE, DOUBLED, TOGETHER)
MAX_FAILURES = 10
_CODES = {ERROR: FAILURES, REPLY_LOST: UNKNOWN_OUTCOMES}
_WITHOUT_EFFECT = (
    *("Lookup", "RunQuery", "RunAggregationQuery", "BeginTransaction", "AllocateIds"),
    *("Rollback", "ListQueues", "cache.get"),
)
# `pytest.fail` and `pytest.raises` raise what is no Exception.
_FAILED = (Exception, pytest.fail.Exception)
_ONLY = re.compile(r"([\w:-]+)(?: at call (\d+) \(([^)]*)\))?")


class ExploreError(AssertionError):
    """A scenario did not end as its check asserts."""


class Fault(NamedTuple):
    """A fault of one play: at a call, or (None) in each delivery."""

    at: int | None
    kind: str


@dataclass(frozen=True)
class Exploration:
    """The count of an exploration.

    Attributes:
        calls: The remote calls of a play without faults.
        plays: How many plays with a fault were played, by fault.
        planned: How many there are.
        missed: In how many of them the fault did not occur, because the calls differed.
    """

    calls: Sequence[RemoteCall]
    plays: Counter[str]
    planned: int
    missed: int
    seconds: float
    failures: Sequence[report.Failure] = field(default=())

    def __str__(self) -> str:
        return report.summary(self)


@dataclass
class _Steps:
    """A user's scenario: steps, of which a failed one is repeated, and a check."""

    steps: Sequence[Callable[[], object]]
    holds: Callable[[], object]
    leaves: Collection[str]
    done: int = 0
    complaint: BaseException | None = None

    def begin(self, tag: str) -> None:
        while self.done < len(self.steps):
            self.steps[self.done]()
            self.done += 1

    def is_done(self, tag: str) -> bool:
        try:
            self.holds()
        except _FAILED as error:
            self.complaint = error
            return False
        self.complaint = None
        return True

    def check(self, tag: str, fault: str) -> None:
        """Do nothing: `is_done` has just checked."""


class _AppPlayer(Player):
    """Plays the scenario of a user in an empty store."""

    def __init__(
        self,
        kit: Rollforward,
        steps: _Steps,
        sweeps: int,
        meanwhile: Callable[[], object] | None,
    ) -> None:
        super().__init__(kit.world, steps, dict.fromkeys((*FAULTS, ""), sweeps))
        self.rounds = sweeps + 1
        self.kit = kit
        self.steps = steps
        self.meanwhile = meanwhile
        self.kind = ""
        self.events: list[str] = []
        self.rivals_error: BaseException | None = None

    def play_fault(self, fault: Fault | None) -> Sequence[RemoteCall]:
        """Play with a fault or without; return the remote calls."""
        self.kind = fault.kind if fault is not None else ""
        self.steps.done, self.steps.complaint, self.rivals_error = 0, None, None
        faults = [(fault.at, fault.kind)] if fault is not None and fault.at is not None else []

        def play() -> list[str]:
            try:
                return self.play(*faults)
            except NotHealedError:
                assert self.steps.complaint is not None
                raise self.steps.complaint from None

        names = apart(play)
        if self.rivals_error is not None:
            raise self.rivals_error
        return self.world.plan.remote_calls[: len(names)]

    def _prepare(self) -> None:
        self.kit.reset()
        world = self.world
        self.events = []
        world.note = self.events.append
        world.doubles, world.overlaps = self.kind == DOUBLED, self.kind == TOGETHER
        world.plan.on_break = self._note_fault
        self.kit.client.is_patient = bool(self.kind)

    def _begin(self, tag: str) -> bool:
        try:
            with self.world.clients.context():
                self.scenario.begin(tag)
        except Crash:
            self.world.bury()
            self.events.append("the worker died; the step is repeated")
            return False
        except AssertionError:
            raise
        except Exception as error:
            if not self.world.plan.fired:
                raise
            self.events.append(f"the step raised {type(error).__name__}, and is repeated")
            return False
        return True

    def _on_fire(self, kinds: Collection[str]) -> Callable[[], None]:
        meanwhile = self.meanwhile
        if meanwhile is None or MEANWHILE not in kinds:
            return super()._on_fire(kinds)

        def act() -> None:
            with self.world.clients.context():
                meanwhile()

        def act_beside() -> None:
            usual = self.world.note
            self.world.note = lambda event: self.events.append(f"  meanwhile: {event}")
            try:
                in_threads(act)
            except _FAILED as error:  # The call of the app goes on: it has no part in this.
                self.rivals_error = error
            finally:
                self.world.note = usual

        return act_beside

    def _note_fault(self, kind: str, index: int, call: RemoteCall) -> None:
        self.events += report.of_fault(kind, index, call)


class Exploring:
    """One exploration of one scenario."""

    def __init__(
        self,
        kit: Rollforward,
        steps: Sequence[Callable[[], object]],
        check: Callable[[], object],
        *,
        sweeps: int,
        leaves: Collection[str],
        meanwhile: Callable[[], object] | None,
    ) -> None:
        self._kit = kit
        self._has_rival = meanwhile is not None
        self._player = _AppPlayer(kit, _Steps(steps, check, leaves), sweeps, meanwhile)
        self._failures: list[report.Failure] = []
        self._plays: Counter[str] = Counter()
        self._missed = 0
        self._locks = kit.world.services.datastore_kind == "firestore"

    def run(
        self,
        *,
        faults: Collection[str],
        services: Collection[str],
        limit: int | None,
        time_s: float | None,
        only: str,
    ) -> Exploration:
        """Play all; arguments and errors as of `Rollforward.explore`."""
        __tracebackhide__ = True
        _check_names("faults", faults, FAULTS)
        _check_names("services", services, SERVICES)
        began_s = time.monotonic()
        with _quiet_deaths():
            calls = self._run_without_faults()
            planned = [_parsed(only, calls)] if only else self._planned(calls, faults, services)
            if not planned and not self._locks:
                self._kit.reset()
                raise ExploreError(
                    f"none of the faults {', '.join(faults)} fits a call of {', '.join(services)}: "
                    f"the scenario calls {', '.join(map(str, calls))}"
                )
            for fault in planned if limit is None else _sample(planned, limit):
                is_late = time_s is not None and time.monotonic() - began_s > time_s
                if is_late or len(self._failures) >= MAX_FAILURES:
                    break
                self._run(fault)
        self._kit.reset()
        seconds = time.monotonic() - began_s
        exploration = Exploration(
            calls, self._plays, len(planned), self._missed, seconds, self._failures
        )
        self._kit.on_explored(exploration)
        if self._failures:
            raise ExploreError(report.of_failures(exploration))
        return exploration

    def _run_without_faults(self) -> Sequence[RemoteCall]:
        try:
            calls = self._player.play_fault(None)
        except _FAILED as error:
            self._kit.reset()
            words = report.of_error(error)
            raise ExploreError(f"already without any fault the scenario fails: {words}") from error
        if not calls:
            raise ExploreError(
                "the scenario makes no remote call, so there is nothing to break: act in it by "
                "rollforward.client and rollforward.settle()"
            )
        return calls

    def _planned(
        self, calls: Sequence[RemoteCall], faults: Collection[str], services: Collection[str]
    ) -> list[Fault]:
        delivers = any(call.delivery for call in calls)
        doubled = [Fault(None, kind) for kind in (DOUBLED, TOGETHER) if kind in faults and delivers]
        chosen = [kind for kind in FAULTS if kind in faults and kind not in (DOUBLED, TOGETHER)]
        broken = [
            Fault(at, _with_code(kind, call, at))
            for at, call in enumerate(calls)
            if call.service in services
            for kind in chosen
            if self._is_valid(kind, call)
        ]
        return broken + doubled

    def _is_valid(self, kind: str, call: RemoteCall) -> bool:
        if kind in (OVERLAP, MEANWHILE):
            has_rival = bool(call.delivery) if kind == OVERLAP else self._has_rival
            return has_rival and not self._locks
        return kind in (ERROR, CRASH_BEFORE) or call.name not in _WITHOUT_EFFECT

    def _run(self, fault: Fault) -> None:
        error: BaseException | None = None
        try:
            self._player.play_fault(fault)
        except _FAILED as raised:
            error = raised
        self._plays[fault.kind.partition(":")[0]] += 1
        fired = self._kit.world.plan.fired or (fault.kind if fault.at is None else "")
        if not fired:
            self._missed += 1
        if error is not None:
            events = list(self._player.events)
            self._failures.append(report.Failure(fired, events, report.of_error(error)))


def _with_code(kind: str, call: RemoteCall, at: int) -> str:
    """Return a kind of fault with one of its gRPC codes, in turn; memcached has none."""
    codes = _CODES.get(kind)
    if codes is None or call.service in (CACHE, APP):
        return kind
    return f"{kind}:{codes[at % len(codes)].name}"


def _sample(faults: Sequence[Fault], limit: int) -> list[Fault]:
    """Return a number of faults: doubled deliveries first, then a fixed sample of the calls."""
    doubled = [fault for fault in faults if fault.at is None][:limit]
    calls = [fault for fault in faults if fault.at is not None]
    count = min(len(calls), limit - len(doubled))
    return sorted(random.Random(0).sample(calls, count)) + doubled


def _parsed(only: str, calls: Sequence[RemoteCall]) -> Fault:
    """Return the fault that a failure has printed.

    Raises:
        ValueError: it is another text, or the calls have changed.
    """
    match = _ONLY.fullmatch(only)
    if match is None or match[1].partition(":")[0] not in FAULTS:
        raise ValueError(f"only must be a fault as a failure prints it, got {only!r}")
    if match[2] is None:
        return Fault(None, match[1])
    at = int(match[2])
    name = calls[at].name if at < len(calls) else "none"
    if name != match[3]:
        raise ValueError(
            f"call {at} of the scenario is {name} now, and not {match[3]}: explore it anew"
        )
    return Fault(at, match[1])


def _check_names(argument: str, names: Collection[str], valid: Sequence[str]) -> None:
    unknown = [name for name in names if name not in valid]
    if unknown or isinstance(names, str):
        raise ValueError(f"{argument} must be a collection of {', '.join(valid)}, got {names!r}")


@contextlib.contextmanager
def _quiet_deaths() -> Iterator[None]:
    """Let a thread whose worker died by a fault end silently, as the process does."""
    usual = threading.excepthook
    threading.excepthook = lambda args: None if isinstance(args.exc_value, Crash) else usual(args)
    try:
        yield
    finally:
        threading.excepthook = usual
