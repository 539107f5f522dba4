"""Batches of a list; `itertools.batched` needs Python 3.12."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut a list into parts of at most `size`.

    >>> list(batched([1, 2, 3, 4, 5], 2))
    [[1, 2], [3, 4], [5]]
    """
    return (items[i : i + size] for i in range(0, len(items), size))
