"""Uploads of any content: what they cost to read is in proportion to their length."""

from __future__ import annotations

import contextlib
import time
import tracemalloc

import pytest

from tests.pipelines.hostile_files import HEADS, HOSTILE, PLAIN, READERS, REFUSALS, file_of

MEASURED_BYTES = 2**20
TIMED_BYTES = 40_000
MAX_RATIO = 20


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


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_byte_of_a_file_costs_no_more_than_twenty_plain_ones(kind: str, reader: str) -> None:
    """S23: whatever stands in a file, reading it takes time in proportion to its length."""
    plain = _cost(reader, file_of(PLAIN[reader], TIMED_BYTES, HEADS.get(reader, b"")))

    hostile = _cost(reader, file_of(HOSTILE[kind], TIMED_BYTES, HEADS.get(reader, b"")))

    assert hostile < MAX_RATIO * plain


def _cost(reader: str, content: bytes) -> float:
    """Return the least processor time that reading a file took in some goes."""
    costs = []
    for _ in range(2):
        began = time.process_time()
        with contextlib.suppress(*REFUSALS):
            READERS[reader](content)
        costs.append(time.process_time() - began)
    return min(costs)
