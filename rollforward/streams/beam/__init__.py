"""Beam: a declared pipeline as transforms of Apache Beam, for Dataflow, Flink or Spark.

    with beam.Pipeline(options=...) as p:
        outputs = translate(WEBLOG, p, sources={"requests": requests})
        outputs["hits"] | beam.io.WriteToText(...)

A computation becomes a stateful DoFn that runs the same code for a key as a worker does
(`execution.bundle_runner`), so windows, joins and fused parts mean what they mean here. `support`
refuses by name what Beam cannot run. The extra `rollforward[beam]` installs Beam; nothing else
imports this package. docs/howto/outgrow-datastore.md says what differs.

On failure a runner repeats a bundle from its last checkpoint. Its guarantees are the runner's and
those writers' that the app chooses.

Source: T. Akidau and others, "The Dataflow Model", 2015.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollforward.streams.beam.outputs import Outputs
    from rollforward.streams.beam.support import UntranslatableError
    from rollforward.streams.beam.translation import Moved, translate

__all__ = ["Moved", "Outputs", "UntranslatableError", "translate"]
_ROOMS = {
    "Moved": "translation",
    "Outputs": "outputs",
    "UntranslatableError": "support",
    "translate": "translation",
}


def __getattr__(name: str) -> Any:
    """Import Beam with the first name that needs it."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
