"""Zeitgeist: what is being played.

ZeitgeistPlayback
    Key: "now". The playback that goes on, or the last one. Queries: none. Growth: one row. Forms
    start and steer it, its tasks write how far it is.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

KEY = "now"


class ZeitgeistPlayback(ndb.Model):
    """A playback as JSON: what it plays, how fast, how far it is."""

    playback = ndb.JsonProperty(indexed=False)


def playback_key() -> Any:
    return ndb.Key(ZeitgeistPlayback, KEY)
