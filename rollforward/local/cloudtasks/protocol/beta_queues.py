"""Times to live, statistics and read masks of queues: both beta versions have them, v2 does not.

Statistics are shown to a read mask that names them, and to no other. All queues here have the same
times to live.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2beta3
"""

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf import field_mask_pb2

from rollforward.local.cloudtasks.protocol import errors
from rollforward.local.cloudtasks.protocol.messages import seconds_of, set_seconds

# Fields that v2 does not have. One of the stored descriptors calls the type `type_`.
OWN_FIELDS = {"type", "type_", "stats", "task_ttl", "tombstone_ttl"}
_TIMES_TO_LIVE = ("task_ttl", "tombstone_ttl")


def check_times_to_live(queue: Any) -> None:
    """Refuse times to live of a queue's own.

    Raises:
        Refused: INVALID_ARGUMENT.
    """
    for field in _TIMES_TO_LIVE:
        if queue.HasField(field) and seconds_of(getattr(queue, field)):
            raise errors.invalid(f"Queue.{field} cannot be set here.")


def add_times_to_live(queue: Any, traits: Any) -> None:
    """Write into a queue how long it keeps tasks and their names."""
    set_seconds(queue.task_ttl, traits.task_ttl_s)
    set_seconds(queue.tombstone_ttl, traits.tombstone_ttl_s)


class ReadMask:
    """The fields of a queue that a caller wants to see, all but the statistics by default.

    Args:
        figures: Returns the load of the queue of a name.

    Raises:
        Refused: INVALID_ARGUMENT: the field does not exist.
    """

    def __init__(
        self, paths: Iterable[str], queue_type: Any, figures: Callable[[str], Any]
    ) -> None:
        self._figures = figures
        fields = queue_type.DESCRIPTOR.fields_by_name
        named = ["type_" if path == "type" and "type_" in fields else path for path in paths]
        self._mask = field_mask_pb2.FieldMask(paths=[*fields] if "*" in named else named)
        if not self._mask.IsValidForDescriptor(queue_type.DESCRIPTOR):
            raise errors.invalid("The read mask names a field that a queue does not have.")

    def apply(self, queue: Any) -> None:
        """Clear the fields of a queue that the mask does not name."""
        paths = self._mask.paths
        if not paths:
            return
        if any(path.partition(".")[0] == "stats" for path in paths):
            _add_stats(queue.stats, self._figures(queue.name))
        shown = type(queue)()
        self._mask.MergeMessage(queue, shown)
        queue.CopyFrom(shown)


def _add_stats(stats: Any, figures: Any) -> None:
    stats.tasks_count = figures.tasks
    stats.executed_last_minute_count = figures.ended_last_minute
    stats.concurrent_dispatches_count = figures.running
    stats.effective_execution_rate = figures.rate_per_s
    if figures.next_at is not None:
        set_seconds(stats.oldest_estimated_arrival_time, figures.next_at)
