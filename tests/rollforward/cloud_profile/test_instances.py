"""Instances that start cold, on a clock of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rollforward.cloud_profile import BUNDLED, load
from rollforward.cloud_profile.instances import ColdStart
from rollforward.cloud_profile.profile import Latency


class Instance:
    """A process that takes four seconds to start."""

    def __init__(self) -> None:
        self.now_s, self.waits = 100.0, list[float]()
        bundled = load(BUNDLED)
        calls = {**bundled.calls, "cold_start": Latency(4000, 4000, 4000)}
        self.app = ColdStart(
            self.answer,
            replace(bundled, calls=calls),
            sleep=self.waits.append,
            monotonic=lambda: self.now_s,
        )

    def answer(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        return [b"done"]

    def ask(self) -> list[bytes]:
        return [*self.app({}, None)]


def test_all_that_come_while_an_instance_starts_wait_for_its_end() -> None:
    """The first one for all of it, and those after it for what is left."""
    instance = Instance()
    answers = [instance.ask()]
    instance.now_s += 3
    answers.append(instance.ask())
    instance.now_s += 1
    answers.append(instance.ask())

    assert instance.waits == [4.0, 1.0]
    assert answers == [[b"done"]] * 3


def test_an_instance_that_was_idle_for_a_quarter_of_an_hour_starts_anew() -> None:
    """One that is asked now and then does not."""
    instance = Instance()
    instance.ask()
    for _ in range(3):
        instance.now_s += 899
        instance.ask()
    warm = list(instance.waits)
    instance.now_s += 901
    instance.ask()

    assert (warm, instance.waits) == ([4.0], [4.0, 4.0])
