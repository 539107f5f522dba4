"""Schedules of streams with codecs: some records cannot be decoded, some kill who decodes them.

Some machines have code without the codecs until the faults end.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rollforward.streams.model.codecs import MARK, ValueCodec
from rollforward.streams.storage.remote_calls import Commit
from rollforward.streams.storage.schema import CHUNK, DEAD
from tests.rollforward.streams.packed import Packed
from tests.rollforward.streams.scenarios.growing import Other, pipeline_of
from tests.rollforward.streams.simulator.accidents import Chances, KilledError
from tests.rollforward.streams.simulator.schedules import REFUSED, Collect, Rekey, Windows
from tests.rollforward.streams.simulator.store import Violation

STREAMS = ("in", "mid", "counts")


class Killing(Packed):
    """A codec that kills its process for some values."""

    def decode(self, data: bytes) -> Any:
        value = super().decode(data)
        if value.get("poison"):
            raise KilledError
        return value


class Coding(Other):
    """A schedule of three streams with one codec.

    Poison is what the codec cannot decode: by an error, or in a third of the schedules by a death.
    """

    codecs: ClassVar[tuple[ValueCodec, ValueCodec]] = (Packed(garbled="poison"), Killing())

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        self.codec = self.codecs[seed % 3 == 2]
        processes = 2 if seed % 4 == 0 else 1
        stages = (Rekey, Windows, Collect)
        codecs = dict.fromkeys(STREAMS, self.codec)
        new = pipeline_of(*stages, processes=processes, codecs=codecs)
        super().__init__(new, seed, chances)
        if seed % 2:
            self.simulation.machines[-1].pipeline = pipeline_of(*stages, processes=processes)
        self.simulation.store.takes = self._is_taken

    def _is_taken(self, commit: Commit) -> bool:
        """Return whether the service takes a commit, as `is_taken` does for JSON."""
        letters = [
            letter
            for key, body in commit.inserts
            if key.kind == CHUNK and ":rekey:" not in key.name
            for letter in body
        ]
        values = [self.simulation.pipeline.codecs.value(letter.text) for letter in letters]
        return not any(REFUSED in value for value in values)

    def _judge_counts(self) -> None:
        super()._judge_counts()
        rows = self.simulation.store.rows
        dead = [row.body for key, row in rows.items() if key.kind == DEAD]
        if plain := [each for each in dead if not each.record.text.startswith(MARK)]:
            raise Violation(f"dead letters have lost their codec: {plain}")
