"""A heap of tasks by due time, from which a task may also leave in the middle.

A task that leaves gives up its `entry`, which stays in the heap and is void. The heap drops it when
it reaches the top, or when half of all entries are void.
"""

import heapq
from collections.abc import Iterator

from rollforward.local.cloudtasks.store.records import LIVE, TaskRecord

Entry = tuple[float, int, int, TaskRecord]

_MIN_COMPACTED = 64


class DueHeap:
    """Entries of tasks, earliest due time first, then oldest."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._compact_at = _MIN_COMPACTED

    def push(self, entry: Entry) -> None:
        """Take an entry in."""
        heapq.heappush(self._entries, entry)
        if len(self._entries) > self._compact_at:
            self._entries = [*self]
            heapq.heapify(self._entries)
            self._compact_at = max(_MIN_COMPACTED, 2 * len(self._entries))

    def head(self) -> TaskRecord | None:
        """Return the task with the earliest due time."""
        while self._entries and not _is_valid(self._entries[0]):
            heapq.heappop(self._entries)
        return self._entries[0][3] if self._entries else None

    def pop_due(self, now_s: float) -> TaskRecord | None:
        """Take out the head, None if it is not due."""
        task = self.head()
        if task is None or task.due_at > now_s:
            return None
        heapq.heappop(self._entries)
        task.entry = None
        return task

    def __iter__(self) -> Iterator[Entry]:
        """Return the valid entries, in no order."""
        return filter(_is_valid, self._entries)

    def __len__(self) -> int:
        """Return how many entries there are, void ones included."""
        return len(self._entries)


def _is_valid(entry: Entry) -> bool:
    return entry[3].entry is entry and entry[3].state == LIVE
