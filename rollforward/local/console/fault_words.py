"""The names of faults: the same in the console, on the app's pages, in the API and in the docs.

A kind is a value of the API (rollforward/local/cloudtasks/delivery/faults.py).
Its name is what people read.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class FaultLabel:
    """The name of a kind of fault, and its effect."""

    name: str
    text: str


FAULTS = {
    "error": FaultLabel("Errors", "The response is 500, and the handler never runs"),
    "lose_response": FaultLabel("Lost responses", "The handler runs, and its response is lost"),
    "duplicate": FaultLabel("Duplicates", "A task that succeeded is redelivered"),
    "overlap": FaultLabel("Overlaps", "A task is delivered twice, at the same time"),
    "delay": FaultLabel("Delays", "A delivery is delayed by some seconds"),
    "reorder": FaultLabel(
        "Reordering", "Due tasks are delivered in random order, not oldest first"
    ),
    "kill_worker": FaultLabel("Worker kills", "The worker is killed some seconds into a delivery"),
}
