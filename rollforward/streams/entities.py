"""Streams: pipelines of computations, their keyed states, and the records between them.

Each row has a name of parts and one JSON body, and is found by its name alone: no property is
indexed. Names begin with the pipeline and the computation (or the stream), then the first of a
range of the 65,536 slots that keys are hashed to. Rows are read and written by
rollforward/datastore/bodies.py, and each write names the version that it expects.

StreamHead
    Name: "<pipeline>". Which computations run, in which version, and the last changes of that; the
    watermarks, the intervals that each computation is cut into, the inboxes
    that were left by those before, the sources that have to wait, and the generation that names the
    next tick. Written by each tick, split and merge; read by workers, at most every 100 ms.
    Growth: one row for each pipeline.

StreamInterval
    Name: "<pipeline>:<computation>:<first slot>". Who works on a range of keys until when, the
    generation that names the task which wakes it, what each of its slabs has to do and when, which
    rows of ids there are, and counts. Written by each checkpoint: it is what fences them all.
    Growth: one row for each interval, 4 of a computation unless it says otherwise, at most 64.

StreamSlab
    Name: as of an interval, with the slab's first slot. Keys with their states and timers.
    Growth: one row for up to 32 KB of states and timers; an empty one stays.

StreamState
    Name: "<pipeline>:<computation>:<slot>:<key>". A state over 4 KB, or any state that was written
    while its slab had over 300 KB of one slot; its key's timers are in the slab. Growth: one row
    for each such key; deleted when the state is.

StreamChunk
    Name: "<interval>:<0: in time, 1: late>:<time of the earliest record, or at which late ones hold
    the watermark>:<id>.<how many records and bytes>"; of an interval that came of a split or merge
    "<interval>.<birth>:...". Up to 500 records on their way to one interval, in columns.
    Inserted by the commit that produces them, deleted by the one that works on them.
    Queries: ranges of names: an inbox, in order. Growth: what is in flight.

StreamIds
    Name: "<interval>:<number>". Up to 500 ids of pushed records, 12 bytes of hash each.
    Growth: at most 200 rows for each interval; deleted when the youngest of its ids has expired.

StreamSource
    Name: "<pipeline>:<stream>:<process>". The position and the watermark of one process of a
    source. Written by each commit that brings records. Growth: one row for each process.

StreamDead
    Name: "<pipeline>:<computation>:<id>". A record or timer whose hook raises, with its error.
    Queries: ranges of names: those of a computation. Growth: one row for each, until it is replayed
    or discarded.
"""

from __future__ import annotations

from google.cloud import ndb


class StreamHead(ndb.Model):
    """The watermarks of a pipeline."""

    body = ndb.JsonProperty(required=True)


class StreamInterval(ndb.Model):
    """A range of a computation's keys."""

    body = ndb.JsonProperty(required=True)


class StreamSlab(ndb.Model):
    """States and timers of many keys."""

    body = ndb.JsonProperty(required=True)


class StreamState(ndb.Model):
    """A large state of one key."""

    body = ndb.JsonProperty(required=True)


class StreamChunk(ndb.Model):
    """Records on their way to one interval."""

    body = ndb.JsonProperty(required=True)


class StreamIds(ndb.Model):
    """Ids of records that were accepted."""

    body = ndb.JsonProperty(required=True)


class StreamSource(ndb.Model):
    """How far one process of a source has come."""

    body = ndb.JsonProperty(required=True)


class StreamDead(ndb.Model):
    """A record or timer that has failed too often."""

    body = ndb.JsonProperty(required=True)
