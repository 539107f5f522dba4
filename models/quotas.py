"""What visitors have under way in a demo.

DemoUsage
    Key: the demo's name. Queries: none.
    Growth: one row for each demo; what is over is dropped with the next write. Only starts write
    it, and a visitor's starts are bounded.
"""

from __future__ import annotations

from google.cloud import ndb


class DemoUsage(ndb.Model):
    """What was let in and may not be over, each [id, visitor, units, over at, in ms since 1970]."""

    under_way = ndb.JsonProperty(indexed=False, default=[])


def usage_key(demo: str) -> ndb.Key:
    return ndb.Key(DemoUsage, demo)
