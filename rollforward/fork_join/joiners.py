"""Joiners: the tasks that fold epochs, and the reasons for creating them.

An epoch's joiner is created by the writer that opened it, before its commit, and is due one period
later. Some epochs need another one:

    full    its items filled it, or are the last to come: a joiner at once
    late    its joiner may have missed this writer: a joiner for the writer's items
    doubt   a commit whose reply was lost may take effect late: a joiner in some seconds
    again   its joiner could not close it to writers: a joiner when no writer remembers it
    woken   the sweep found it stranded

The reason is part of the task's name, so the same joiner is created once. A superfluous joiner
finds nothing to fold.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pydantic

from rollforward import outbox
from rollforward.app_code import APP_ERRORS
from rollforward.fork_join.batching.epochs import Admission, Epochs, gone_at
from rollforward.fork_join.batching.settings import QueueSettings
from rollforward.fork_join.entities import PackId
from rollforward.fork_join.items import MAX_KEY_BYTES
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.messages import Message
from rollforward.tasks.declaration import Task

log = logging.getLogger(__name__)

# A commit whose reply was lost may take effect this much later, behind its joiner.
LOOK_AGAIN_AFTER = datetime.timedelta(seconds=3)


@dataclass(frozen=True)
class Join:
    """A batch to fold. `is_shared`: writers of other processes found it in memcached.

    Without a key (the sweep does not know it) the joiner reads it from the batch.
    """

    key: Annotated[str, pydantic.Field(max_length=MAX_KEY_BYTES)]
    epoch: Annotated[str, pydantic.Field(max_length=60)]
    shard: Annotated[int, pydantic.Field(ge=0, le=1000)] = 0
    is_shared: bool = False


class Joiners:
    """Admits writers to the epochs of a queue, and ensures that each epoch has a joiner."""

    def __init__(self, settings: QueueSettings, task: Task[Join]) -> None:
        self.settings = settings
        self.task = task

    def epochs(self, clients: Clients) -> Epochs:
        """Return the epochs that this process remembers."""
        return clients.process_state.get_or_create(
            f"fork-join:epochs:{self.settings.name}",
            lambda: Epochs(self.settings.period_s, self.settings.shape),
        )

    def enter(self, clients: Clients, key: str, items: int) -> Admission:
        """Announce items in the open epoch of a key; open one if there is none."""
        return self.epochs(clients).enter(clients, self.settings.slot(clients, key), items)

    def start(self, clients: Clients, admissions: Sequence[Admission]) -> None:
        """Create the joiners of epochs that others can see from now on."""
        opened = [entry for entry in admissions if entry.is_new and entry.is_shared]
        self._create(clients, [self._message(clients, entry, at=entry.due) for entry in opened])

    def leave(self, clients: Clients, stays: Sequence[tuple[Admission, PackId]]) -> None:
        """Leave epochs; ensure that a joiner still comes for the items put there."""
        joiners = [self._left(clients, admission, pack) for admission, pack in stays]
        self._create(clients, [joiner for joiner in joiners if joiner is not None])

    def fold_later(self, clients: Clients, stays: Sequence[tuple[Admission, PackId]]) -> None:
        """Fold epochs once more in some seconds: a commit whose reply was lost may come late."""
        at = naive_utc(clients.clock.now()) + LOOK_AGAIN_AFTER
        joiners = [self._message(clients, entry, "doubt", pack.id, at=at) for entry, pack in stays]
        self._create(clients, joiners)

    def fold_again(self, clients: Clients, join: Join) -> None:
        """Fold an epoch once more when no writer remembers it: its lock could not be closed."""
        at = gone_at(join.epoch, self.settings.period_s)
        self._create(clients, [self._task_of(clients, join, "again", at=at)])

    def wake(self, clients: Clients, stranded: Sequence[str], minute: str) -> None:
        """Create tasks for stranded epochs, whose keys are not known here."""
        joins = [Join("", epoch) for epoch in stranded]
        names = [(epoch, "woken", minute) for epoch in stranded]
        self.task.enqueue_many(clients, joins, names=names)

    def _left(self, clients: Clients, admission: Admission, pack: PackId) -> Message | None:
        """Leave an epoch; return the joiner that it needs now."""
        epochs = self.epochs(clients)
        is_missed = epochs.leave(clients, admission)
        is_over = self._are_last(clients, admission) or admission.is_full
        if admission.is_new and not admission.is_shared:
            return self._message(clients, admission, at=admission.due)
        if is_missed:
            return self._message(clients, admission, "late", pack.id)
        if is_over and admission.due > naive_utc(clients.clock.now()):
            epochs.discard(clients, admission.slot, admission.epoch)
            return self._message(clients, admission, "full")
        return None

    def _are_last(self, clients: Clients, admission: Admission) -> bool:
        are_last = self.settings.are_last
        if are_last is None or not admission.items:
            return False
        try:
            return are_last(clients, admission.slot.key, admission.items)
        except APP_ERRORS:  # The items are committed: their caller must not fail.
            log.exception("%s: are_last failed: its batch waits", self.settings.name)
            return False

    def _message(
        self,
        clients: Clients,
        admission: Admission,
        *name: str,
        at: datetime.datetime | None = None,
    ) -> Message:
        slot = admission.slot
        join = Join(slot.key, admission.epoch, slot.shard, admission.is_shared)
        return self._task_of(clients, join, *name, at=at)

    def _task_of(
        self, clients: Clients, join: Join, *name: str, at: datetime.datetime | None = None
    ) -> Message:
        is_ahead = at is not None and at > naive_utc(clients.clock.now())
        due = at.replace(tzinfo=datetime.UTC) if at is not None and is_ahead else None
        return self.task.message(join, name=(join.epoch, *name), at=due)

    @staticmethod
    def _create(clients: Clients, joiners: Sequence[Message]) -> None:
        """Create joiners; if Cloud Tasks does not accept some, the outbox or a sweep will."""
        if not joiners:
            return
        answers = list(zip(joiners, clients.tasks.create_all(joiners), strict=True))
        if errors := [answer for _, answer in answers if isinstance(answer, Exception)]:
            log.warning("%d batches have no joiner yet: %s", len(errors), errors[0])
            failed = [joiner for joiner, answer in answers if isinstance(answer, Exception)]
            outbox.create_later(clients, failed)
