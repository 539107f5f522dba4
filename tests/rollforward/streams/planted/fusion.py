"""Fusion with a part of it left out or turned round: what the schedules have to notice."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.streams.execution import bundle_runner
from rollforward.streams.operators.fused import _Steps
from tests.rollforward.streams.scenarios.fusing import Fusing


def timers_hold_nothing(schedule: Fusing, patch: pytest.MonkeyPatch) -> None:
    """A part sees the watermark of them all, while others' timers still write for it."""
    patch.setattr(_Steps, "watermark", property(lambda self: self._backend.watermark))


def late_is_forgotten(schedule: Fusing, patch: pytest.MonkeyPatch) -> None:
    """What follows from a late record is in time for the next part."""
    real = _Steps._send

    def send(self: Any, *args: Any, late_at: int) -> None:
        real(self, *args, late_at=0)

    patch.setattr(_Steps, "_send", send)


def late_timers_hold(schedule: Fusing, patch: pytest.MonkeyPatch) -> None:
    """A timer that a late record has set holds the next part back, behind where it was."""
    real = _Steps._begin

    def begin(self: Any, fired: tuple[str, int] | None) -> None:
        real(self, fired and (fired[0], self._backend.firing.at_ms))

    patch.setattr(_Steps, "_begin", begin)


def readers_first(schedule: Fusing, patch: pytest.MonkeyPatch) -> None:
    """The timers of a part fire before those of another one that writes for it."""

    def place(due: tuple[bool, int, str]) -> tuple[bool, int]:
        _, at, tag = due
        return tag.startswith("delay:"), at

    patch.setattr(bundle_runner, "min", lambda due: min(due, key=place), raising=False)


VARIANTS = (timers_hold_nothing, late_is_forgotten, late_timers_hold, readers_first)
