"""Accepted work that is not folded yet, its receipts and its results.

WorkPack
    Items that one process has put with one commit, under one epoch.
    Key: "<queue>|<epoch>|<items>|<kilobytes>|<id>". An epoch begins with a random number, so
    batches spread over the key space; the packs of an epoch are one range. A single item of a
    bisected pack has the id of its pack, with ".<position>" behind. A parked item has "parked:"
    before its key, so that joiners and sweeps skip it.
    Queries: ranges of keys: an epoch's packs; a queue's packs, partition by partition; a queue's
    parked items; the single items of a pack. tag = "..." or a range of tags, by key: the pending or
    parked items of one reader. Single-property index.
    Growth: one row for each pending commit, deleted by its fold's own transaction, and one for each
    parked item, moved back by the transaction of its replay, or deleted with its dead task.

WorkReceipt
    Key: a digest of the queue, the key and the caller's idempotency key. Inserted with the pack, so
    a second commit with the same request is refused.
    Queries: expires < ..., by partition. Single-property index.
    Growth: one row for each request with an id, for 24 hours (of gathered counters, for 32 days);
    then the sweep deletes it, within some two hours.

WorkOutcome
    Key: as the pack, whose callers keep the results of the join function, or whose item was deleted
    with its dead task.
    Queries: as for receipts. Growth: one row for each of these packs, for an hour, or 30 days if it
    was deleted; then deleted likewise.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import refusing_key
from rollforward.datastore.partitions import PARTITIONS
from rollforward.runtime.clock import parse_time, time_text
from rollforward.tracing.spans import MAX_LINKS

_SUBJECT = "a fork-join queue"


class WorkPack(ndb.Model):
    """Items of one key, in order of arrival."""

    batch_key = ndb.TextProperty(required=True)
    items = ndb.TextProperty(required=True)  # A JSON list.
    tag = ndb.StringProperty()
    traceparents = ndb.TextProperty()  # Of its items' inserts, separated by blanks; None: none.
    keep_result = ndb.BooleanProperty(indexed=False)  # For a caller that reads results.
    failures = ndb.IntegerProperty(indexed=False, default=0)  # Of its only item.
    fails_alone = ndb.BooleanProperty(indexed=False)  # Others of its batch went through.
    dead_task = ndb.TextProperty()  # By whose replay it comes back; None: it is not parked.


class WorkReceipt(ndb.Model):
    """A request that was accepted."""

    pack = ndb.TextProperty(required=True)
    position = ndb.IntegerProperty(indexed=False, required=True)
    digest = ndb.TextProperty(
        required=True
    )  # Of the item: a different item under the same key is an error.
    expires = ndb.StringProperty(required=True)


class WorkOutcome(ndb.Model):
    """The results of a pack's items."""

    results = ndb.JsonProperty(indexed=False, required=True)  # A list, one for each item.
    is_deleted = ndb.BooleanProperty(indexed=False, default=False)  # Its only item is not folded.
    expires = ndb.StringProperty(required=True)


@dataclass(frozen=True)
class EpochId:
    """The parts of an epoch's id: random, with its opening time and a hash of its key.

    >>> epoch = EpochId("c0ffee012345", datetime.datetime(2030, 5, 1, 12), "1a2b3c4d")
    >>> epoch.text
    'c0ffee012345.20300501T120000000000.1a2b3c4d'
    >>> EpochId.parse(epoch.text) == epoch
    True
    """

    random: str
    opened: datetime.datetime
    key_hash: str

    @property
    def text(self) -> str:
        return f"{self.random}.{time_text(self.opened)}.{self.key_hash}"

    @classmethod
    def parse(cls, text: str) -> EpochId:
        """Return the parts of an epoch.

        Raises:
            ValueError: it is none.
        """
        random, opened, key_hash = text.split(".")
        if len(random) != 12 or len(key_hash) != 8 or not set(random + key_hash) <= set(PARTITIONS):
            raise ValueError("not an epoch")
        return cls(random, parse_time(opened), key_hash)


@dataclass(frozen=True)
class PackId:
    """The parts of a pack's key: enough to plan a fold, and to count, without reading packs."""

    queue: str
    epoch: str
    items: int
    kilobytes: int
    id: str

    @property
    def text(self) -> str:
        return f"{self.queue}|{self.epoch}|{self.items}|{self.kilobytes}|{self.id}"

    @property
    def parked(self) -> PackId:
        """The id of the pack while it is parked."""
        return replace(self, queue=_parked(self.queue))

    def single(self, position: int) -> PackId:
        """Return the pack of one item after a split. A pack of one item is never split."""
        return self if self.items == 1 else replace(self, items=1, id=f"{self.id}.{position}")

    @classmethod
    def parse(cls, text: str) -> PackId:
        """Return the parts of a key.

        Raises:
            ValueError: it is none.
        """
        queue, epoch, items, kilobytes, id_ = text.split("|")
        return cls(queue, epoch, int(items), int(kilobytes), id_)


def joined_traceparents(traceparents: Iterable[str]) -> str | None:
    """Return distinct traceparents as one text, at most as many as a span may link to."""
    return " ".join([text for text in dict.fromkeys(traceparents) if text][:MAX_LINKS]) or None


def key_hash_of(queue: str, key: str) -> str:
    """Return the hash that an epoch's id has of its key."""
    return hashlib.sha256(json.dumps([queue, key]).encode()).hexdigest()[:8]


def pack_key(pack: str) -> Any:
    """Return a pack's key."""
    return refusing_key(_SUBJECT, WorkPack, pack)


def packs_of_epoch(queue: str, epoch: str) -> Any:
    """Return the query for the packs of an epoch."""
    low, high = epoch_bounds(queue, epoch)
    return _between(low.id(), high.id())


def epoch_bounds(queue: str, epoch: str) -> tuple[Any, Any]:
    """Return the keys between which the packs of an epoch are; neither is a pack's."""
    return pack_key(f"{queue}|{epoch}|"), pack_key(f"{queue}|{epoch}}}")


def packs_of_queue(queue: str, partition: str = "", *, after: str = "") -> Any:
    """Return the query for the packs of a queue, or of one partition, behind a key."""
    prefix = f"{queue}|{partition}"
    return _between(after or prefix, prefix + "}")


def parked_packs(queue: str) -> Any:
    """Return the query for the parked items of a queue, by key."""
    return packs_of_queue(_parked(queue))


def unfolded(packs: Sequence[str]) -> list[WorkPack]:
    """Return the unfolded parts of packs, by the keys that `insert_in_transaction` returned.

    They may be pending or parked, whole or split.
    """
    ids = [PackId.parse(pack) for pack in packs]
    places = [place.text for id_ in ids for place in (id_, id_.parked)]
    rows = [pack for pack in ndb.get_multi(map(pack_key, places)) if pack is not None]
    unsplit = {pack.key.id() for pack in rows}
    for id_ in ids:
        if id_.items > 1 and id_.text not in unsplit:
            for single in (replace(id_, items=1), replace(id_, items=1).parked):
                rows += _between(f"{single.text}.", f"{single.text}.}}").fetch()
    return rows


def _parked(queue: str) -> str:
    return f"parked:{queue}"  # No queue has a colon in its name.


def packs_with_tag(tag: str) -> Any:
    """Return the query for the packs of a tag, by key."""
    return WorkPack.query(WorkPack.tag == tag).order(WorkPack._key)


def packs_with_tag_prefix(prefix: str) -> Any:
    """Return the query for the packs of all tags that begin with a prefix."""
    tag = WorkPack.tag
    return WorkPack.query(tag >= prefix, tag < prefix + "\U0010ffff").order(tag)


def _between(low: str, high: str) -> Any:
    key = WorkPack._key
    return WorkPack.query(key > pack_key(low), key < pack_key(high)).order(key)


def receipt_key(queue: str, key: str, idempotency_key: str) -> Any:
    """Return the key of a request's receipt."""
    exact = json.dumps([queue, key, idempotency_key]).encode()
    return refusing_key(_SUBJECT, WorkReceipt, hashlib.sha256(exact).hexdigest()[:40])


def outcome_key(pack: str) -> Any:
    """Return the key of a pack's outcome."""
    return refusing_key(_SUBJECT, WorkOutcome, pack)
