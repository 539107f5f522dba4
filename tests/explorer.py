"""Runs a scenario once, counts its remote calls, then breaks each of them in turn.

After every run the world is healed (time passes, the sweep runs) and the scenario checks its
totals: exact, each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from google.api_core import exceptions as rpc_errors

from tests.faults import FLUSH, KINDS, OVERLAP, Crash
from tests.world import SWEPT_EVERY_S, World, in_threads


class Scenario(Protocol):
    """Something to do, and what must be true in the end. `tag` sets its runs apart."""

    def begin(self, tag: str) -> None:
        """Do what a user does; called again when it failed, as a user would try again."""
        ...

    def is_done(self, tag: str) -> bool: ...

    def check(self, tag: str, fault: str) -> None: ...


@dataclass
class Explorer:
    """Plays one scenario in one world."""

    world: World
    scenario: Scenario
    plays: int = 0

    def explore(self, kinds: Sequence[str] = KINDS, every: int = 1) -> list[str]:
        """Play the scenario with each fault at each remote call; return the faults that fired."""
        calls = self.play()
        assert calls, "the scenario makes no remote call: nothing is tested"
        fired = []
        for kind in kinds:
            for at in range(0, len(calls), every):
                self.play(kind, at)
                if self.world.plan.fired:
                    fired.append(self.world.plan.fired)
        # Some calls are not made again when an earlier fault changed the way; most are.
        assert len(fired) >= 0.9 * len(kinds) * (len(calls) // every), "the faults do not bite"
        return fired

    def play(self, kind: str = "", at: int | None = None) -> list[str]:
        """Play once, with a fault or without; return the remote calls that were made."""
        world, plan = self.world, self.world.plan
        world.engine.reset()
        self.plays += 1
        tag = f"p{self.plays}"
        plan.calls, plan.kind, plan.at, plan.fired = [], kind, at, ""
        plan.on_fire = {FLUSH: world.flush, OVERLAP: self._overlap}.get(kind, lambda: None)
        with plan.watched():
            if not self._begin(tag):
                with plan.unwatched():
                    assert self._begin(tag), f"trying again does not help: {plan.fired}"
            world.settle(patience_s=SWEPT_EVERY_S)
        calls = list(plan.calls)
        world.heal(lambda: self.scenario.is_done(tag))
        with world.context():
            self.scenario.check(tag, plan.fired)
        return calls

    def _begin(self, tag: str) -> bool:
        try:
            with self.world.clients.context():
                self.scenario.begin(tag)
        except (Crash, rpc_errors.GoogleAPIError):
            self.world.bury()
            return False
        return True

    def _overlap(self) -> None:
        """Deliver the task under way once more, to its end, on another thread."""
        attempt = self.world.current
        if attempt is not None:
            in_threads(lambda: self.world.answer(attempt))
