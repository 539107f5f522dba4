"""Entities of streams: the control rows of pipelines, keyed states, and records in flight.

Each row has a structured name and one JSON body, and is looked up by its name: no property is
indexed. Names begin with the pipeline and the computation (or the stream), followed by the first
slot of a range. Keys are hashed to 65,536 slots. rollforward/datastore/bodies.py reads and writes
the rows, and each write names the version that it expects.

StreamHead
    Name: "<pipeline>". The topology (running computations and their versions) and its last changes,
    the watermarks, the intervals of each computation, retired inboxes, paused sources, and the
    generation in the name of the next tick. Written by each tick, split and merge; read by workers,
    at most every 100 ms. Growth: one row for each pipeline.

StreamInterval
    Name: "<pipeline>:<computation>:<first slot>". The lease of a range of keys, the generation in
    the name of its task, summaries of its slabs with their due times, its rows of ids, counts, and
    in pipelines of many intervals a note of up to 512 inboxes that it has sent to.
    Written by each checkpoint, which it fences.
    Growth: one row for each interval: 4 per computation by default, at most 64.

StreamSlab
    Name: like an interval's, with the slab's first slot. Keys with their states and timers.
    Growth: one row for up to 32 KB of states and timers; an empty one remains.

StreamState
    Name: "<pipeline>:<computation>:<slot>:<key>". A state over 4 KB, or any state that was written
    while its slab had over 300 KB of one slot; its key's timers are in the slab. Growth: one row
    for each large state; deleted with the state.

StreamChunk
    Name: "<interval>:<0: on time, 1: late>:<time of the earliest record, or hold of late records>
    :<id>.<number of records>.<bytes>". After a split or merge: "<interval>.<layout version>:...".
    Of traced work: "...:<id>~<traceparent>.<number of records>.<bytes>".
    Up to 500 records in flight to one interval, in columns. A value with a codec is in base64, with
    the codec's name. Inserted by the commit that produces them, deleted by the commit that consumes
    them.
    Queries: ranges of names: an inbox, in order. Growth: the records in flight.

StreamIds
    Name: "<interval>:<number>". Up to 500 ids of pushed records, 12 bytes of hash each.
    Growth: at most 200 rows for each interval; deleted when the youngest of its ids has expired.

StreamSource
    Name: "<pipeline>:<stream>:<process>". The position and the watermark of one process of a
    source, and a note as an interval has one. Written by each commit with its records.
    Growth: one row for each process.

StreamDead
    Name: "<pipeline>:<computation>:<id>". A dead letter: a record or timer, with its error.
    Queries: ranges of names: the dead letters of a computation. Growth: one row for each, until it
    is replayed or discarded.

StreamLog
    Name: "<pipeline>:<publication>:<first slot>:<layout version>:<number after the last record>
    :<time of writing>". Up to 500 records of a published stream, in the order in which its interval
    wrote them. Inserted by the commit that takes them out of the inbox.
    Queries: ranges of names, from a position on. Growth: one for each bundle; deleted by the sweep
    when the publication's `keep` is over and all subscribers have read them.

StreamSubscription
    Name: "<pipeline>:<publication>:<subscribing pipeline>:<its stream>". Inserted by the first read
    of a subscriber. Queries: ranges of names: the subscribers of a publication. Growth: one for
    each; deleted by the sweep when no computation of the subscriber reads the stream.
"""

from __future__ import annotations

from google.cloud import ndb


class StreamHead(ndb.Model):
    """The control row of a pipeline: watermarks, intervals, topology."""

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
    """Progress of one process of a source."""

    body = ndb.JsonProperty(required=True)


class StreamDead(ndb.Model):
    """A dead letter: a record or timer that failed permanently."""

    body = ndb.JsonProperty(required=True)


class StreamLog(ndb.Model):
    """Records of a published stream."""

    body = ndb.JsonProperty(required=True)


class StreamSubscription(ndb.Model):
    """A pipeline that reads a published stream."""

    body = ndb.JsonProperty(required=True)
