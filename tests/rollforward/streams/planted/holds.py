"""Holds with a part of them left out or turned round: what the schedules have to notice."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.streams.execution.hook_backend import HookBackend
from rollforward.streams.model.key_state import KeyState, SetTimer, Times
from tests.rollforward.streams.scenarios.holding import Holding


def holds_nothing(schedule: Holding, patch: pytest.MonkeyPatch) -> None:
    """The interval's row does not have the hold."""
    real = KeyState._compute_times

    def times(self: KeyState) -> Times:
        timers = {tag: timer for tag, timer in self.timers.items() if not timer.is_hold}
        return real(self)._replace(hold=KeyState("", timers).times.hold)

    patch.setattr(KeyState, "_compute_times", times)


def never_ends(schedule: Holding, patch: pytest.MonkeyPatch) -> None:
    """A hold outlives the inputs."""
    real = SetTimer.is_due

    def is_due(self: SetTimer, watermark: int, now_ms: int) -> bool:
        return not self.is_hold and real(self, watermark, now_ms)

    patch.setattr(SetTimer, "is_due", is_due)


def late_replaces(schedule: Holding, patch: pytest.MonkeyPatch) -> None:
    """A late record takes the hold of records that were on time."""
    real = HookBackend.hold

    def hold(self: Any, at_ms: int, tag: str = "") -> int:
        held = self._work.timers.get(tag)
        if self.late_at and held is not None and at_ms < held.hold:
            del self._work.timers[tag]
        return real(self, at_ms, tag)

    patch.setattr(HookBackend, "hold", hold)


def late_completes_late(schedule: Holding, patch: pytest.MonkeyPatch) -> None:
    """What a late record completes is late, although it was held."""
    real = HookBackend._late_at

    def late_at(self: Any, at: int, tag: str, subject: str) -> int:
        return self.late_at or real(self, at, tag, subject)

    patch.setattr(HookBackend, "_late_at", late_at)


def late_passes_as_held(schedule: Holding, patch: pytest.MonkeyPatch) -> None:
    """The hold of a late record is taken for one of the watermark."""
    real = HookBackend._late_at

    def late_at(self: Any, at: int, tag: str, subject: str) -> int:
        behind = real(self, at, tag, subject)
        return 0 if at < self.timestamp_ms else behind

    patch.setattr(HookBackend, "_late_at", late_at)


VARIANTS = (holds_nothing, never_ends, late_replaces, late_completes_late, late_passes_as_held)
