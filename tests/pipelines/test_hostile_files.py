"""Uploads of any content: what they cost to read is in proportion to their length."""

from __future__ import annotations

import contextlib
import math
import time
import tracemalloc

import pytest

from tests.pipelines.hostile_files import HEADS, HOSTILE, PLAIN, READERS, REFUSALS, file_of

MEASURED_BYTES = 2**20
SMALL_BYTES, LARGE_BYTES = 10_000, 160_000
# Linear is one, quadratic sixteen: a small part that is quadratic already shows.
MAX_GROWTH = 2
# Files of empty lines measure up to 19: each line has its cost, and a plain line has 85 bytes.
MAX_RATIO = 40
ROUNDS = 5


@pytest.mark.timeout(300)
@pytest.mark.one_of("hostile files in memory", 4)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_is_read_in_a_small_multiple_of_its_own_memory(kind: str, reader: str) -> None:
    """S23: rows are read one at a time, and counted first: 8 MiB of newlines took 600 MB."""
    content = file_of(HOSTILE[kind], MEASURED_BYTES, HEADS.get(reader, b""))

    tracemalloc.start()
    with contextlib.suppress(*REFUSALS):
        READERS[reader](content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 6 * len(content)


@pytest.mark.one_of("hostile files in time", 4)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_time_grows_with_the_length_of_a_file_and_its_content_counts_little(
    kind: str, reader: str
) -> None:
    """S23: whatever stands in a file, reading it takes time in proportion to its length.

    Noise only adds to a time, so what does not hold is measured again and the least times count.
    """
    head = HEADS.get(reader, b"")
    plain = file_of(PLAIN[reader], LARGE_BYTES, head)
    small, large = (file_of(HOSTILE[kind], size, head) for size in (SMALL_BYTES, LARGE_BYTES))
    files, costs = (plain, small, large), [math.inf] * 3

    for _ in range(ROUNDS):
        costs = [min(cost, _cost(reader, file)) for cost, file in zip(costs, files, strict=True)]
        growth, ratio = costs[2] * SMALL_BYTES / costs[1] / LARGE_BYTES, costs[2] / costs[0]
        if growth < MAX_GROWTH and ratio < MAX_RATIO:
            return
    pytest.fail(f"sixteen times the length: {growth:.1f} a byte; {ratio:.1f} plain files")


def _cost(reader: str, content: bytes) -> float:
    """Return the processor time that reading a file takes."""
    began = time.process_time()
    with contextlib.suppress(*REFUSALS):
        READERS[reader](content)
    return time.process_time() - began
