"""The outputs of a translated pipeline, as Beam's collections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import apache_beam as beam

from rollforward.streams.model.json_text import decoded


class Outputs(Mapping[str, Any]):
    """Collections by the names of streams and sinks.

    A stream's has its values, each with its time as Beam's timestamp. A sink's has what its `make`
    returns, for one of Beam's writers.

    Attributes:
        dead: Dead letters as JSON: {"computation", "key", "error", ...}.
        states: The states of keys at `ends_at`, as `Moved.states` takes them.
        after: Records that came to a key after that, for the other engine.
    """

    def __init__(
        self, streams: Mapping[str, Any], sinks: Mapping[str, Any], dead: Any, states: Any,
        after: Any,
    ) -> None:  # fmt: skip
        self._streams, self._values = streams, dict(sinks)
        self._names = [*streams, *sinks]
        self.dead, self.states, self.after = dead, states, after

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            label = f"values of {name}"
            self._values[name] = self._streams[name] | label >> beam.Map(_value)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _value(element: tuple[str, int]) -> Any:
    return decoded(element[0])
