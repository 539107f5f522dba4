"""Batches of a list, by number or by size; `itertools.batched` needs Python 3.12."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

# Of a commit: the service takes 10 MiB, the emulators take 4.
MAX_COMMIT_BYTES = 3_500_000


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut a list into parts of at most `size`.

    >>> list(batched([1, 2, 3, 4, 5], 2))
    [[1, 2], [3, 4], [5]]
    """
    return (items[i : i + size] for i in range(0, len(items), size))


def count_within(max_size: int, sizes: Iterable[int]) -> int:
    """Return how many of the first fit into a size together; at least one.

    >>> count_within(10, [4, 4, 4]), count_within(10, [40])
    (2, 1)
    """
    return max(1, sum(size <= max_size for size in itertools.accumulate(sizes)))
