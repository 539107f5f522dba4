"""Parked items: poison items, each with a dead task.

The commit that writes the dead task moves the item to a key that joiners and sweeps skip. The dead
task's replay moves it back and creates its joiner. If that replay is lost, as by a purge of its
queue, an operator retries the item by its fork-join queue. The commit that deletes the dead
task deletes the item, and keeps for its caller that it did.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from google.cloud import ndb

from rollforward.datastore.expiry import expiry
from rollforward.datastore.transactions import transact
from rollforward.fork_join.entities import PackId, WorkOutcome, WorkPack, outcome_key, pack_key
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks import dead_tasks
from rollforward.tasks.arguments import ArgumentsCodec
from rollforward.tasks.dead_task_entities import KEPT_FOR, DeadTask
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import BadArgumentsError

_REPLAYS = re.compile(r"/tasks/fork-join/[^/]+/replay")


@dataclass(frozen=True)
class Replay:
    """An item to retry. `key` and `item` are for readers of dead tasks."""

    pack: Annotated[str, pydantic.Field(max_length=300)]
    key: str
    item: str


def park_in_transaction(
    clients: Clients,
    replay_task: Task[Replay],
    stored: WorkPack,
    *,
    dead_id: str,
    reason: str,
) -> None:
    """Move a pack of one item away, and write its dead task."""
    pack = PackId.parse(stored.key.id())
    (item,) = json.loads(stored.items)
    replay = Replay(pack.text, stored.batch_key, json.dumps(item, ensure_ascii=False))
    dead_tasks.dead_letter_in_transaction(
        clients,
        dead_id=dead_id,
        path=replay_task.path,
        queue=replay_task.queue,
        body=replay_task.message(replay).body,
        reason=reason,
    )
    _move(stored, pack.parked, dead_task=dead_id)


def unpark(pack: PackId) -> None:
    """Move a parked item back, if it is still parked; the caller creates its joiner."""

    def body() -> None:
        parked = pack_key(pack.parked.text).get()
        if parked is not None:
            _move(parked, pack)

    transact(body)


def without_dead_task(keys: Sequence[Any]) -> list[WorkPack]:
    """Return the parked packs that no open dead task brings back, by their keys.

    Their replays were lost, as by a purge of their queue, or an earlier version deleted their dead
    tasks, or did not note which ones they are.
    """
    parked = [pack for pack in ndb.get_multi(keys) if pack is not None]
    dead_rows = ndb.get_multi([ndb.Key(DeadTask, pack.dead_task or "none") for pack in parked])
    pairs = zip(parked, dead_rows, strict=True)
    return [pack for pack, dead in pairs if dead is None or dead.resolved]


def discard_in_transaction(clients: Clients, dead: DeadTask) -> None:
    """Delete the item that a dead task would bring back, in the commit that deletes that one.

    An item that was parked again meanwhile belongs to the dead task of that time.
    """
    if not _REPLAYS.fullmatch(dead.path):
        return
    try:
        args = ArgumentsCodec(dead.path, Replay).read(dead.body.encode())
        pack = PackId.parse(args.pack)
        key = pack_key(pack.parked.text)
    except (BadArgumentsError, ValueError):
        return  # It would bring nothing back.
    parked = key.get()
    if parked is not None and (parked.dead_task == dead.key.id() or without_dead_task([key])):
        key.delete()
        expires = expiry(pack.epoch, naive_utc(clients.clock.now()) + KEPT_FOR)
        WorkOutcome(
            key=outcome_key(pack.text), results=[None], is_deleted=True, expires=expires
        ).put()


def _move(stored: WorkPack, place: PackId, dead_task: str | None = None) -> None:
    """Move a pack to another key, in a transaction, with its failures reset."""
    WorkPack(
        key=pack_key(place.text),
        batch_key=stored.batch_key,
        items=stored.items,
        keep_result=stored.keep_result,
        tag=stored.tag,
        traceparents=stored.traceparents,
        dead_task=dead_task,
    ).put()
    stored.key.delete()
