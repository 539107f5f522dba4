"""Concurrent increments by several writers: of one entity, or of one of many shards."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from google.api_core import exceptions as rpc_errors

from models.numbers import NumberScratch, scratch_key
from rollforward.datastore import transact
from rollforward.runtime import Clients

# With more writers, an emulator that locks makes no progress: all wait for each other.
WRITERS = 4
INCREMENTS = 5  # Maximum of each writer.
# On an emulator that locks, a lost race costs seconds, so a writer stops early.
ENOUGH_S = 8.0
SHARDS = 20
START_S = 10.0  # Time limit for all writers to be ready.
# A writer that has lost all races of one `transact` begins again.
MAX_ROUNDS = 20


def increment(probe: str, number: int) -> None:
    """Read a row and write it, one higher, in a transaction."""
    key = scratch_key(probe, number)
    row = key.get() or NumberScratch(key=key)
    row.count += 1
    row.put()


def increments(clients: Clients, probe: str, shards: int) -> list[float]:
    """Return the duration of each increment in seconds, lost races included.

    Each writer makes at least one.
    """
    start = threading.Barrier(WRITERS)

    def write(seed: int) -> list[float]:
        chosen = random.Random(seed)
        with clients.context():
            start.wait(START_S)
            enough_at = time.perf_counter() + ENOUGH_S
            samples = [_timed(probe, chosen.randrange(shards))]
            while len(samples) < INCREMENTS and time.perf_counter() < enough_at:
                samples.append(_timed(probe, chosen.randrange(shards)))
            return samples

    with ThreadPoolExecutor(WRITERS) as writers:
        return [took for samples in writers.map(write, range(WRITERS)) for took in samples]


def _timed(probe: str, shard: int) -> float:
    started = time.perf_counter()
    for _ in range(MAX_ROUNDS - 1):
        try:
            transact(lambda: increment(probe, shard))
        except rpc_errors.Aborted:
            continue
        return time.perf_counter() - started
    transact(lambda: increment(probe, shard))
    return time.perf_counter() - started
