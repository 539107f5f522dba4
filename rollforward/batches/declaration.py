"""Declarations of batches, and the names of batches and members."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollforward.batches.errors import BadWorkError
from rollforward.batches.policy import Policy
from rollforward.datastore.contexts import refuse_other_namespace
from rollforward.runtime.clients import Clients
from rollforward.runtime.texts import plain_text
from rollforward.tasks.declaration import Task

NAME = re.compile(r"[a-z][a-z0-9_-]{1,60}")
MAX_ID_BYTES = 200
MAX_KEEP = datetime.timedelta(days=365)


@dataclass(frozen=True)
class Completed:
    """A batch that is complete, as its callback gets it.

    A batch that is run again completes again, in the next generation. `outcome`: "succeeded",
    "failed" or "cancelled".
    """

    name: str
    batch_id: str
    generation: int
    outcome: str
    members: int
    done: int
    failed: int
    cancelled: int

    @property
    def idempotency_key(self) -> str:
        """The same in each delivery of one completion."""
        return f"{self.name}:{self.batch_id}:{self.generation}"


@dataclass(frozen=True)
class MemberRef:
    """One member, in one generation of its batch."""

    batch: str
    page: str
    position: int
    generation: int


@dataclass(frozen=True)
class BatchDeclaration:
    """Batches as they are declared; `TaskBatch` says what each of these is."""

    name: str
    policy: Policy
    callback: Task[Completed] | None
    keep: datetime.timedelta
    paths: Mapping[Task[Any], str] = field(default_factory=dict)  # Where members are delivered.

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"name must match {NAME.pattern}, got {self.name!r}")
        if not datetime.timedelta(0) < self.keep <= MAX_KEEP:
            raise ValueError(
                f"keep must be positive and at most {MAX_KEEP.days} days, got {self.keep}"
            )
        if isinstance(self.callback, Task) and not issubclass(Completed, self.callback.args):
            raise TypeError(
                f"{self.callback.path} is called with Completed when a batch has ended: declare it "
                "as `def bind(args: Completed)`"
            )

    def key(self, batch_id: object) -> str:
        """Return the prefix of the keys of a batch.

        Raises:
            BadWorkError: there can be no batch of this id.
            OtherNamespaceError: two tenants would add to one batch by one id.
        """
        refuse_other_namespace(f"the batch {self.name}")
        if not isinstance(batch_id, str):
            raise BadWorkError(f"batch_id must be a text, got {batch_id!r:.100}")
        if not batch_id or not batch_id.isprintable() or set(batch_id) & set(":;"):
            raise BadWorkError(
                f"batch_id must be printable and not empty, without : and ;, got {batch_id!r:.100}"
            )
        if len(batch_id.encode()) > MAX_ID_BYTES:
            raise BadWorkError(
                f"batch_id must have at most {MAX_ID_BYTES} bytes, got {batch_id!r:.100}"
            )
        return f"{self.name}:{plain_text(batch_id)}"


def ignore(clients: Any, args: Any) -> None:
    """Do nothing: for tasks that this code creates, and others deliver."""


class StoredTask(Task[Any]):
    """A task known by a path that a row holds, and maybe declared by another version of the app."""

    def check_registered(self, clients: Clients) -> None:
        """Pass: the version that stored the path has checked it.

        In a deployment the old version may complete a batch of the new one. The callback then
        waits for the new version, as every task does.
        """


def message_task(path: str, queue: str, args: type[Any]) -> Task[Any]:
    """Return a task by which messages are made for a path that another part has declared."""
    work: Callable[[Any, Any], None] = ignore
    return StoredTask(path, queue, args, work)
