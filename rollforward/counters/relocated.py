"""Reads of counters that are not where this version of the code keeps them (relocation.py)."""

from __future__ import annotations

from collections.abc import Sequence

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.counters.entities import config_key, total_key
from rollforward.counters.totals import MAX_LOOKUPS, ShardReader
from rollforward.datastore.batched import batched
from rollforward.datastore.versions import lookup_versions

# Two keys each, and a lookup takes 1,000.
MAX_COUNTERS = 500


def read_elsewhere(
    datastore: ndb.Client, reader: ShardReader, declaration: str, keys: Sequence[str]
) -> dict[str, int]:
    """Return the totals of counters that are not in the place of this version of the code.

    Raises:
        google.api_core.exceptions.ServiceUnavailable: they move faster than they can be read.
    """
    totals: dict[str, int] = {}
    for _ in range(MAX_LOOKUPS):
        unread = [key for key in keys if key not in totals]
        for group in batched(unread, MAX_COUNTERS):
            totals.update(_read_both(datastore, reader, declaration, group))
        if len(totals) == len(keys):
            return totals
    raise rpc_errors.ServiceUnavailable(  # type: ignore[no-untyped-call]
        f"counters of {declaration} move between two versions of the code too fast to be read"
    )


def _read_both(
    datastore: ndb.Client, reader: ShardReader, declaration: str, keys: Sequence[str]
) -> dict[str, int]:
    """Return the totals of the counters that did not move meanwhile."""
    asked = [
        place
        for key in keys
        for place in (total_key(declaration, key), config_key(declaration, key))
    ]
    answers, is_one_moment = lookup_versions(datastore, asked)
    places = dict(zip(keys, zip(answers[::2], answers[1::2], strict=True), strict=True))
    totals = {key: int(total[0].count) for key, (total, _) in places.items() if total is not None}
    sharded = [key for key, (total, config) in places.items() if config and not total]
    for key, shards in reader.read(sharded).items():
        if shards.config is not None:
            totals[key] = shards.total
    if is_one_moment:
        totals |= {key: 0 for key, (total, config) in places.items() if not total and not config}
    return totals
