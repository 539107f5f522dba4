"""Samples of faults: a scenario's remote calls are broken one by one, or two at a time.

`make test` breaks a sample of the calls, spread over the whole scenario, and other calls for
another kind of fault; beyond that each test breaks what no test before it has broken in this way,
so that each remote call (a commit, a mail, a look into memcached) meets each kind of fault. At its
end it says which did not. Errors and lost replies take their gRPC codes in turn, so each pipeline
meets each code. `make soak` breaks each call with each code, and all pairs of calls.

The plays are those that apps have, too (`rollforward/testing/explorer.py`).
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence

from rollforward.testing.explorer import Player
from rollforward.testing.injection import (
    ERROR,
    FAILURES,
    KINDS,
    REPLY_LOST,
    UNKNOWN_OUTCOMES,
)
from tests.infra.faults.fault_coverage import MET
from tests.infra.runs.sampling import IS_SAMPLED, SEED
from tests.infra.runs.soak import BUDGET, IS_SOAK

# `make soak`: each call with each code, and all pairs of calls. All of that takes hours.
IS_EXHAUSTIVE = IS_SOAK
CODES = {ERROR: FAILURES, REPLY_LOST: UNKNOWN_OUTCOMES}
PAIRS = 1  # Pairs of faults in `make test`, of each scenario.
# Calls that are broken in any case, of each scenario and kind of fault. The emulator that locks is
# slower.
PLAYS = {"datastore": 1 if IS_SAMPLED else 2, "firestore": 1}
ALL = 10**6

# What this process has played without faults, by test.
_known_calls: dict[str, list[str]] = {}


class Explorer(Player):
    """Plays one scenario in one world, with a sample of all faults."""

    def explore(
        self, kinds: Sequence[str] = KINDS, at_most: int = 0, *, named: str = ""
    ) -> list[str]:
        """Play the scenario with each fault at its remote calls; return the faults that fired.

        Args:
            at_most: How many calls are broken by each kind of fault; 0: as many as PLAYS says.
            named: Only calls of this name are broken, such as "Commit".
        """
        calls = self._calls(kinds)
        assert calls, "the scenario makes no remote call: nothing is tested"
        most = ALL if IS_EXHAUSTIVE else at_most or PLAYS[self.world.services.datastore_kind]
        broken = {call for call in calls if named in ("", call)}
        faults = [
            fault
            for kind in kinds
            for at in _chosen(calls, most, kind, is_bounded=bool(at_most))
            if calls[at] in broken
            for fault in self._faults(kind, at)
        ]
        BUDGET.could_break({(call, _plain(kind)) for call in broken for kind in kinds})
        if at_most == ALL:  # A planted bug: some of these show it, and they may stand together.
            random.Random(ALL).shuffle(faults)
        return self._play_all([[fault] for fault in faults], to_the_end=at_most == ALL)

    def explore_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], *, seed: int = 0, named: str = ""
    ) -> list[str]:
        """Play with two faults at once: one of `firsts`, and one of `seconds` at a later call.

        Args:
            seed: Which PAIRS of all pairs are played, and with which of their codes.
            named: What the test's parameter calls them.
        """
        calls = self._calls([named or firsts[0]])
        pairs = [
            (at, first, later, second)
            for first in firsts
            for second in seconds
            for at in range(len(calls))
            for later in range(at + 1, len(calls) + 2)
        ]
        chance = random.Random(f"{SEED} {seed}")
        if not IS_EXHAUSTIVE:
            pairs = chance.sample(pairs, PAIRS)
        return self._play_all(
            [
                [(at, _with_code(first, chance)), (later, _with_code(second, chance))]
                for at, first, later, second in pairs
            ]
        )

    def _calls(self, faults: Sequence[str]) -> list[str]:
        """Return the remote calls of a play without faults.

        Tests that differ by nothing but the faults in their parameters play it once.
        """
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        for fault in faults:
            test = test.replace(f"-{fault}", "").replace(f"{fault}-", "").replace(f"[{fault}]", "")
        if IS_EXHAUSTIVE or test not in _known_calls:
            _known_calls[test] = self.play()
        return _known_calls[test]

    def _play_all(
        self, plays: Sequence[Sequence[tuple[int, str]]], *, to_the_end: bool = False
    ) -> list[str]:
        fired, played = [], 0
        for faults in BUDGET.drawn(plays):
            if BUDGET.is_over() and not to_the_end:  # A planted bug may show in the last one.
                break
            self._play_until_it_fires(faults)
            BUDGET.played()
            played += 1
            if self.world.plan.fired:
                fired.append(self.world.plan.fired)
                BUDGET.has_broken(broken := _broken(self.world.plan.fired))
                MET.add(*broken)
        # Some calls are not made again when an earlier fault changed the way; most are.
        assert len(fired) >= 0.9 * played, "the faults do not bite"
        return fired

    def _play_until_it_fires(self, faults: Sequence[tuple[int, str]]) -> None:
        """Play; where no fault fired, play with earlier ones.

        A call that the first play made, such as the question of a new process, need not come again.
        """
        calls = self.play(*faults)
        while not self.world.plan.fired and faults[0][0]:
            earlier = max(1, faults[0][0] - len(calls) + 1)
            faults = [(max(0, at - earlier), kind) for at, kind in faults]
            calls = self.play(*faults)

    def _faults(self, kind: str, at: int) -> list[tuple[int, str]]:
        """Return a fault at a call, with one of its gRPC codes; or with each of them."""
        codes = CODES.get(kind)
        if codes is None:
            return [(at, kind)]
        some = codes if IS_EXHAUSTIVE else [codes[at % len(codes)]]
        return [(at, f"{kind}:{code.name}") for code in some]


def _chosen(calls: Sequence[str], most: int, kind: str, *, is_bounded: bool) -> list[int]:
    """Return which calls are broken: a sample, and what no test here has broken in this way."""
    sample = _sample(calls, most, kind)
    if is_bounded:
        return sample
    others = sorted(set(calls) - {calls[at] for at in sample})
    names = [name for name in others if not MET.has(name, _plain(kind))]
    return sorted([*sample, *(calls.index(name) for name in names)])


def _sample(calls: Sequence[str], most: int, kind: str) -> list[int]:
    """Return which calls are broken, one of each of `most` equal parts, by the kind of fault.

    >>> _sample(["Lookup", "Commit"], 8, "error"), len(_sample(["Lookup"] * 100, 8, "error"))
    ([0, 1], 8)
    """
    count = len(calls)
    if count <= most:
        return list(range(count))
    chance = random.Random(f"{SEED} {kind}")
    borders = [part * count // most for part in range(most + 1)]
    return [_drawn(calls, range(low, high), chance) for low, high in itertools.pairwise(borders)]


def _drawn(calls: Sequence[str], part: Sequence[int], chance: random.Random) -> int:
    """Draw one of the different calls of a part, then one time that it is made."""
    name = chance.choice(sorted({calls[at] for at in part}))
    return chance.choice([at for at in part if calls[at] == name])


def _plain(kind: str) -> str:
    """Return a kind of fault without its gRPC code."""
    return kind.partition(":")[0]


def _broken(fired: str) -> tuple[str, str]:
    """Return which call a plan has broken first, and how.

    >>> _broken("error:ABORTED at call 7 (Commit)")
    ('Commit', 'error')
    """
    kind, _, call = fired.partition(" at call ")
    return call.partition("(")[2].partition(")")[0], _plain(kind)


def _with_code(kind: str, chance: random.Random) -> str:
    """Return a kind of fault with one of its gRPC codes."""
    return f"{kind}:{chance.choice(CODES[kind]).name}" if kind in CODES else kind
