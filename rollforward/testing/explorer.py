"""Plays of a scenario: one without faults counts its remote calls, others break some of them.

After every play the world is healed: time passes, and only then the sweep runs. The scenario checks
its totals each time, and nothing may be left behind. The number of sweeps is bounded. Lost wakes,
links and relays would be hidden otherwise, because the sweep makes up for all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from google.api_core import exceptions as rpc_errors

from rollforward.testing.injection import ERROR, OVERLAP, REPLY_LOST, Crash
from rollforward.testing.leftovers import remaining_rows
from rollforward.testing.world import (
    SWEPT_EVERY_S,
    NotHealedError,
    NotSettledError,
    World,
    in_threads,
)

# How many sweeps may pass until all is right, by kind of fault. A missing kind takes none: a
# worker that starts in the place of a dead one looks for abandoned work. But the world's outbox
# relays as a script does, only once: tasks that Cloud Tasks did not confirm are left to the sweep.
MAX_SWEEPS = {ERROR: 1, REPLY_LOST: 1}
NO_SWEEPS: Mapping[str, int] = {}


class Scenario(Protocol):
    """A piece of work, and the claim that must be true in the end. `tag` sets its runs apart.

    One that leaves rows on purpose has `leaves`, parts of their names (`leftovers.py`).
    """

    def begin(self, tag: str) -> None:
        """Act as a user does; called again when it failed, as a user would try again."""
        ...

    def is_done(self, tag: str) -> bool: ...

    def check(self, tag: str, fault: str) -> None: ...


class Player:
    """Plays one scenario in one world."""

    rounds = 8

    def __init__(
        self, world: World, scenario: Scenario, most_sweeps: Mapping[str, int] = MAX_SWEEPS
    ) -> None:
        self.world = world
        self.scenario = scenario
        self.most_sweeps = most_sweeps
        self.plays = 0

    def play(self, *faults: tuple[int, str]) -> list[str]:
        """Play once, with some faults or without; return the remote calls that were made."""
        world, plan = self.world, self.world.plan
        self._prepare()
        self.plays += 1
        tag = f"p{self.plays}"
        plan.reset(more=dict(faults))
        kinds = [kind.partition(":")[0] for _, kind in faults]
        plan.on_fire = self._on_fire(kinds)
        with plan.watched():
            if not self._begin(tag):
                with plan.unwatched():
                    assert self._begin(tag), f"trying again does not help: {plan.fired}"
            # After a fault a task may come again until a sweep has brought what it waits for.
            with contextlib.suppress(*([NotSettledError] if faults else [])):
                world.settle(patience_s=SWEPT_EVERY_S, revives=True)
        calls = list(plan.calls)
        sweeps = world.heal(lambda: self.scenario.is_done(tag), self.rounds)
        with world.context():
            self.scenario.check(tag, plan.fired)
        self._check_outcome(sweeps, kinds)
        self._check_clean()
        return calls

    def _prepare(self) -> None:
        """Forget the tasks of the play before."""
        self.world.engine.reset()

    def _check_outcome(self, sweeps: int, kinds: Collection[str]) -> None:
        """Check how many sweeps were needed: no more than its faults may take."""
        limit = sum(self.most_sweeps.get(kind, 0) for kind in kinds)
        assert sweeps <= limit, f"{sweeps} sweeps instead of {limit}: {self.world.plan.fired}"

    def _check_clean(self) -> None:
        """Check that no row is left that has served, after one sweep more at most."""
        leaves: Collection[str] = getattr(self.scenario, "leaves", ())
        rows: list[str] = []

        def is_clean() -> bool:
            rows[:] = remaining_rows(leaves)
            return not rows

        with contextlib.suppress(NotHealedError):
            self.world.heal(is_clean, rounds=2)
        assert not rows, f"{self.world.plan.fired}: it leaves {rows}"

    def _begin(self, tag: str) -> bool:
        try:
            with self.world.clients.context():
                self.scenario.begin(tag)
        except Crash:
            self.world.bury()
            return False
        except rpc_errors.GoogleAPIError:
            return False
        return True

    def _on_fire(self, kinds: Collection[str]) -> Callable[[], None]:
        """Return the act that a fault of the play takes while its call waits."""
        return self._overlap if OVERLAP in kinds else self.world.flush

    def _overlap(self) -> None:
        """Deliver the current task once more, to its end, on another thread."""
        attempt = self.world.current
        if attempt is not None:
            in_threads(lambda: self.world.answer(attempt))
