"""Zeitgeist: the playback of a recorded stream.

ZeitgeistPlayback
    Key: "now". The running playback, or the last one. Queries: none. Growth: one row. Forms start
    and steer it, and its tasks write its progress.
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
