"""Clicks: loads that increment the demo's counters, and their accepted increments.

ClickLoads
    Key: "clicks". The last load, and the accepted clicks of earlier ones, by way of counting.
    Queries: none. Growth: one row.

ClickWriter
    Key: "<load>|<way>|<writer>". Progress of one writer of a load.
    Queries: none. Growth: at most 40 rows a load; the load after the next one deletes them.

ClickSwitch
    Key: "write-limit". A switch: production's limit of writes is simulated. Queries: none.
    Growth: one row.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb


class ClickLoads(ndb.Model):
    """The last load, and the accepted clicks of earlier ones."""

    load = ndb.JsonProperty(indexed=False)
    earlier = ndb.JsonProperty(indexed=False)  # Accepted clicks of earlier loads, by way.
    past = ndb.JsonProperty(indexed=False)  # The load before the last one, whose rows still exist.
    past_is_open = ndb.BooleanProperty(indexed=False)  # Some of its writers had not ended.


class ClickWriter(ndb.Model):
    """One writer of a load. Its clicks up to `accepted` are counted, one after the other."""

    accepted = ndb.IntegerProperty(indexed=False, default=0)
    planned = ndb.IntegerProperty(indexed=False, default=0)  # A step has begun that makes these.
    repeats = ndb.IntegerProperty(indexed=False, default=0)
    writes = ndb.IntegerProperty(indexed=False, default=0)
    latencies = ndb.JsonProperty(indexed=False)  # How many clicks took how long, by bucket.
    seconds = ndb.JsonProperty(indexed=False)  # By second of the load: [clicks, conflicts].
    has_ended = ndb.BooleanProperty(indexed=False, default=False)
    ended_ms = ndb.IntegerProperty(indexed=False)  # Since 1970.
    is_closed = ndb.BooleanProperty(indexed=False, default=False)  # The next load has begun.


class ClickSwitch(ndb.Model):
    """The switch that limits writes of an entity as in production."""

    is_on = ndb.BooleanProperty(indexed=False, default=False)


def loads_key() -> Any:
    """Return the key of the demo's loads."""
    return ndb.Key(ClickLoads, "clicks")


def writer_key(load: str, way: str, writer: int) -> Any:
    """Return the key of a writer of a load."""
    return ndb.Key(ClickWriter, f"{load}|{way}|{writer:02d}")


def switch_key() -> Any:
    """Return the key of the switch."""
    return ndb.Key(ClickSwitch, "write-limit")
