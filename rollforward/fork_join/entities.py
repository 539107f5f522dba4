"""Work that was accepted and is not folded yet, and what remains of it.

WorkPack
    Items that one process has put with one commit, under one epoch.
    Key: "<queue>|<epoch>|<items>|<kilobytes>|<id>". An epoch begins with a random number, so
    batches spread over the key space; the packs of one stand together. An item that was split off
    has the id of its pack, with ".<position>" behind. One that was parked stands apart, with
    "parked:" before its key, where neither joiners nor sweeps look.
    Queries: ranges of keys: an epoch's packs; a queue's packs, partition by partition; a queue's
    parked items; what was split off a pack. tag = "..." or a range of tags, by key: what waits
    or is parked, for one reader. Single-property index.
    Growth: one row for each commit that waits, deleted by its fold's own transaction, and one for
    each parked item, moved back by that of its replay.

WorkReceipt
    Key: a digest of the queue, the key and the caller's idempotency key. Inserted with the pack, so
    a second commit with the same request is refused.
    Queries: expires < ..., by partition. Single-property index.
    Growth: one row for each request with an id, for 24 hours (of gathered counters, for 32 days);
    then the sweep deletes it, within some two hours.

WorkOutcome
    Key: that of a pack whose callers asked what became of their items: the join function's results.
    Queries: as for receipts. Growth: one row for each such pack, for an hour, deleted likewise.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.cloud import ndb

from rollforward.datastore.partitions import PARTITIONS

_TIME = "%Y%m%dT%H%M%S%f"


class WorkPack(ndb.Model):
    """Items of one key, in the order of their coming."""

    batch_key = ndb.TextProperty(required=True)
    items = ndb.TextProperty(required=True)  # A JSON list.
    tag = ndb.StringProperty()
    keep_result = ndb.BooleanProperty(indexed=False)  # A caller wants the results.
    failures = ndb.IntegerProperty(indexed=False, default=0)  # Of its only item.
    fails_alone = ndb.BooleanProperty(indexed=False)  # Others of its batch went through.


class WorkReceipt(ndb.Model):
    """A request that was accepted."""

    pack = ndb.TextProperty(required=True)
    position = ndb.IntegerProperty(indexed=False, required=True)
    digest = ndb.TextProperty(required=True)  # Of the item: the same id with another is an error.
    expires = ndb.StringProperty(required=True)


class WorkOutcome(ndb.Model):
    """What became of a pack's items."""

    results = ndb.JsonProperty(indexed=False, required=True)  # A list, one for each item.
    expires = ndb.StringProperty(required=True)


@dataclass(frozen=True)
class EpochId:
    """A batch: random, with the time of its opening and a hash of the key that it is for.

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
        return f"{self.random}.{self.opened:{_TIME}}.{self.key_hash}"

    @classmethod
    def parse(cls, text: str) -> EpochId:
        """Return the parts of an epoch.

        Raises:
            ValueError: it is none.
        """
        random, opened, key_hash = text.split(".")
        if len(random) != 12 or len(key_hash) != 8 or not set(random + key_hash) <= set(PARTITIONS):
            raise ValueError("not an epoch")
        made = datetime.datetime.strptime(opened, _TIME)  # noqa: DTZ007  Datastore's are naive.
        return cls(random, made, key_hash)


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
        """Where it stands while it is parked."""
        return replace(self, queue=_parked(self.queue))

    def single(self, position: int) -> PackId:
        """Return the pack of one item, if this one is split. One alone is never split."""
        return self if self.items == 1 else replace(self, items=1, id=f"{self.id}.{position}")

    @classmethod
    def parse(cls, text: str) -> PackId:
        """Return the parts of a key.

        Raises:
            ValueError: it is none.
        """
        queue, epoch, items, kilobytes, id_ = text.split("|")
        return cls(queue, epoch, int(items), int(kilobytes), id_)


def key_hash_of(queue: str, key: str) -> str:
    """Return what an epoch says of the key that it is for."""
    return hashlib.sha256(json.dumps([queue, key]).encode()).hexdigest()[:8]


def pack_key(pack: str) -> Any:
    """Return a pack's key."""
    return ndb.Key(WorkPack, pack)


def packs_of_epoch(queue: str, epoch: str) -> Any:
    """Return the query for the packs of an epoch."""
    return _between(f"{queue}|{epoch}|", f"{queue}|{epoch}}}")


def packs_of_queue(queue: str, partition: str = "", *, after: str = "") -> Any:
    """Return the query for a queue's packs, or those of one partition, behind a key."""
    first = f"{queue}|{partition}"
    return _between(after or first, first + "}")


def parked_packs(queue: str) -> Any:
    """Return the query for the parked items of a queue, by key."""
    return packs_of_queue(_parked(queue))


def left_of(packs: Sequence[str]) -> list[WorkPack]:
    """Return what is left of some packs, by the keys that their writers were told.

    Waiting or parked, whole or split: nothing is left of what is folded.
    """
    ids = [PackId.parse(pack) for pack in packs]
    places = [each.text for id_ in ids for each in (id_, id_.parked)]
    found = [pack for pack in ndb.get_multi(map(pack_key, places)) if pack is not None]
    whole = {pack.key.id() for pack in found}
    for id_ in ids:
        if id_.items > 1 and id_.text not in whole:
            for split in (replace(id_, items=1), replace(id_, items=1).parked):
                found += _between(f"{split.text}.", f"{split.text}.}}").fetch()
    return found


def _parked(queue: str) -> str:
    return f"parked:{queue}"  # No queue is called so.


def packs_tagged(tag: str) -> Any:
    """Return the query for the packs of a tag, by key."""
    return WorkPack.query(WorkPack.tag == tag).order(WorkPack._key)


def packs_tagged_under(prefix: str) -> Any:
    """Return the query for the packs of all tags that begin with a prefix."""
    tag = WorkPack.tag
    return WorkPack.query(tag >= prefix, tag < prefix + "\U0010ffff").order(tag)


def _between(after: str, before: str) -> Any:
    key = WorkPack._key
    return WorkPack.query(key > pack_key(after), key < pack_key(before)).order(key)


def receipt_key(queue: str, key: str, idempotency_key: str) -> Any:
    """Return the key of a request's receipt."""
    exact = json.dumps([queue, key, idempotency_key]).encode()
    return ndb.Key(WorkReceipt, hashlib.sha256(exact).hexdigest()[:40])


def outcome_key(pack: str) -> Any:
    """Return the key of a pack's outcome."""
    return ndb.Key(WorkOutcome, pack)
