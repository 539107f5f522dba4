"""Running work of visitors in a demo.

DemoUsage
    Key: the demo's name. Queries: none.
    Growth: one row for each demo; finished work is dropped with the next write. Only starts write
    it, and a visitor's starts are bounded.
"""

from __future__ import annotations

from google.cloud import ndb


class DemoUsage(ndb.Model):
    """Accepted work that may be running: [id, visitor, units, end in ms since 1970] each."""

    under_way = ndb.JsonProperty(indexed=False, default=[])


def usage_key(demo: str) -> ndb.Key:
    return ndb.Key(DemoUsage, demo)
