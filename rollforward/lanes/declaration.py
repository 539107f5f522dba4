"""Declared lanes: how the tasks of each key share a queue."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rollforward.lanes import adding, control
from rollforward.lanes.errors import BadLaneError
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rate import Rate
from rollforward.lanes.reading import KeyPage, KeyState, keys_of, resting_keys, state_of
from rollforward.lanes.rows.entities import (
    LaneState,
    LaneTask,
    quoted,
    time_of,
    unquote,
    waiting,
)
from rollforward.lanes.runs.delivery import deliver
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import aware_utc
from rollforward.runtime.messages import Message
from rollforward.runtime.process.optional_clients import optional_clients
from rollforward.runtime.texts import has_unpaired_surrogate, plain_text
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import UnknownTaskError
from rollforward.tasks.times import check_deadline

MAX_LIMIT = 50
MAX_WEIGHT = 20.0
MAX_KEY_BYTES = 200
_NAME = re.compile(r"[a-z][a-z0-9-]{0,49}")


class Lane:
    """A lane: tasks wait by key, and each key has its own order, limit, rate and share.

        BY_USER = rf.Lane("by-user", queue="default", order=True)
        notify.enqueue(notify.bind("ada"), lane=BY_USER("ada"))

    An app registers it like a task: `rf.serve(app, notify, BY_USER)`.
    """

    def __init__(
        self,
        name: str,
        *,
        queue: str = "default",
        order: bool = False,
        limit: int = 1,
        rate: Rate | None = None,
        weight: float = 1.0,
        on_dead: Literal["pass", "block"] = "pass",
        deadline_s: int = 600,
    ) -> None:
        """Declare a lane.

        Args:
            name: Stands in keys and routes: never change it while tasks wait.
            queue: A queue of queue.yaml, which delivers the lane.
            order: Whether the tasks of a key run one after the other, in the order of their
                commits, also over retries.
            limit: How many tasks of a key run at a time, 1 to 50; 1 with an order.
            rate: How many tasks of a key begin in some time; None: any number.
            weight: The share of each key among all keys of its queue, 0.1 to 20.
            on_dead: Whether a task that was given up lets the next one of its key pass, or blocks
                the key until an operator resumes it; "block" needs an order.
            deadline_s: Seconds that one of its tasks may take, 15 to 1,800.

        Raises:
            ValueError: the declaration is invalid.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"name must be 1 to 50 of a-z, 0-9 and -, got {name!r}")
        if not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
            raise ValueError(f"limit must be a whole number of 1 to {MAX_LIMIT}, got {limit!r}")
        if order and limit != 1:
            raise ValueError(f"a lane with an order runs one task of a key at a time, got {limit}")
        if rate is not None and not isinstance(rate, Rate):
            raise ValueError(f"rate must be a rollforward.lanes.Rate, as Rate(10), got {rate!r}")
        if not 0.1 <= weight <= MAX_WEIGHT:
            raise ValueError(f"weight must be 0.1 to {MAX_WEIGHT:g}, got {weight}")
        if on_dead not in ("pass", "block") or (on_dead == "block" and not order):
            raise ValueError(f'on_dead must be "pass", or "block" with an order, got {on_dead!r}')
        check_deadline(deadline_s)
        self.name = name
        self.queue = queue
        self.order = order
        self.limit = limit
        self.rate = rate
        self.weight = weight
        self.on_dead = on_dead
        self.task: Task[LaneArgs] = LaneTurns(
            f"/tasks/lanes/{name}",
            queue,
            LaneArgs,
            partial(deliver, self),
            deadline_s=deadline_s,
            lane=self,
        )

    def __repr__(self) -> str:
        return f"Lane({self.name!r})"

    def __call__(self, key: str | int) -> LaneKey:
        """Return a key of the lane, in which tasks may wait: `lane=BY_USER("ada")`.

        Raises:
            BadLaneError: it is empty, too long, no text, or has half of a surrogate pair.
        """
        return self.key(key)

    def key(self, key: str | int) -> LaneKey:
        """Return a key of the lane: a user, a tenant, a repository.

        Raises:
            BadLaneError: it is empty, too long, no text, or has half of a surrogate pair.
        """
        if not isinstance(key, (str, int)):  # None would be the key of all who have none.
            raise BadLaneError(
                f"a key of the lane {self.name} must be a text or a number, got {key!r:.100}"
            )
        text = plain_text(key)
        if has_unpaired_surrogate(text):
            raise BadLaneError(f"a key of the lane {self.name} contains an unpaired surrogate")
        if not text or len(quoted(text).encode()) > MAX_KEY_BYTES:
            raise BadLaneError(
                f"a key of the lane {self.name} must have 1 to {MAX_KEY_BYTES} bytes, quoted as "
                f"in a URL, got {text!r:.100}"
            )
        return LaneKey(self, text)

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        """Its tasks, which an app delivers."""
        return [self.task]

    def due_at(self, task: LaneTask, state: LaneState | None) -> datetime.datetime:
        """Return when a key should run, by its first task, aware.

        Args:
            state: The state of the key; None: it is not known.
        """
        return aware_utc(task.not_before) or time_of(task.key.id())

    def keys(self, *, start_after: str = "", limit: int = 100) -> KeyPage:
        """Return keys that have tasks, in the order of their texts, quoted as in a URL.

        A page costs a query of at most 100 ids for each of its keys, however many tasks they have.

        Args:
            start_after: `next_after` of the page before.
        """
        return keys_of(self.name, start_after=start_after, limit=limit)

    def resting(self, *, start_after: str = "", limit: int = 100) -> KeyPage:
        """Return keys that are paused, or blocked by a dead task; as `keys`."""
        return resting_keys(self.name, start_after=start_after, limit=limit)


@dataclass(frozen=True)
class LaneTurns(Task[LaneArgs]):
    """The task by which the keys of a lane have their turns."""

    lane: Any = None

    def key_of(self, lane_id: str) -> LaneKey:
        """Return a key of the lane by "<lane>|<key>"."""
        return LaneKey(self.lane, unquote(lane_id.partition("|")[2]))


def key_with_id(clients: Clients, lane_id: str) -> LaneKey | None:
    """Return a key by "<lane>|<key>"; None: the app declares no lane of its name for tasks."""
    tasks = clients.task_paths
    path = f"/tasks/lanes/{lane_id.partition('|')[0]}"
    task = tasks.get(path) if isinstance(tasks, Mapping) else None
    return task.key_of(lane_id) if isinstance(task, LaneTurns) else None


@dataclass(frozen=True)
class LaneKey:
    """A key of a lane, whose tasks wait for each other."""

    lane: Lane
    key: str

    @property
    def id(self) -> str:
        """Its id among the keys of all lanes."""
        return f"{self.lane.name}|{quoted(self.key)}"

    def waiting(self, limit: int) -> int:
        """Return how many tasks of the key wait or run, up to a limit, by keys alone."""
        return len(waiting(self.id).fetch(limit, keys_only=True))

    def add(self, clients: Clients, messages: Sequence[Message]) -> None:
        """Let messages wait, by commits of their own."""
        self._check(clients, messages)
        adding.add(clients, self.lane.task, self.id, messages, is_ordered=self.lane.order)

    def add_in_transaction(self, clients: Clients, message: Message) -> None:
        """Let a message wait, by the commit of the transaction that this code runs in."""
        self._check(clients, [message])
        adding.add_in_transaction(
            clients, self.lane.task, self.id, message, is_ordered=self.lane.order
        )

    def state(self) -> KeyState:
        """Return the key's backlog and pauses: a read, and up to 1,000 ids."""
        return state_of(self.id)

    @optional_clients
    def pause(self, clients: Clients) -> None:
        """Let no further task begin until `resume`; a turn that has begun runs to its end."""
        control.pause(clients, self.id)

    @optional_clients
    def resume(self, clients: Clients) -> None:
        """Clear the pause of the key, and its block by a dead task.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: call it again; the key may be resumed.
        """
        control.resume(clients, self.lane, self.id)

    @optional_clients
    def drain(self, clients: Clients, *, limit: int = control.MAX_DRAINED) -> control.Drained:
        """Delete the tasks that wait, and none that a delivery has claimed.

        The sweep of batches creates their members again: cancel a batch instead.

        Args:
            limit: How many at most; after 20 seconds no further ones.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: some may be deleted.
        """
        return control.drain(clients, self.id, limit=limit)

    def replay_in_transaction(
        self, clients: Clients, message: Message, *, dead_id: str, lane_task: str
    ) -> None:
        """Let the task of a dead task wait again; if it blocks the key, it runs first."""
        control.take_back(
            clients, self.lane, self.id, message, dead_id=dead_id, lane_task=lane_task
        )

    def unblock_in_transaction(self, clients: Clients, *, dead_id: str) -> None:
        """Unblock the key, if this dead task, which is deleted, blocks it."""
        control.unblock(clients, self.lane, self.id, dead_id=dead_id)

    def check_registered(self, clients: Clients) -> None:
        """Check that the app delivers the tasks of the lane.

        Raises:
            UnknownTaskError: its registry has no such lane.
        """
        try:
            self.lane.task.check_registered(clients)
        except UnknownTaskError:
            raise UnknownTaskError(
                f"the lane {self.lane.name!r} is in no registry, so its tasks would never run: add "
                "the lane to rf.serve(app, ...), or to the app's Registry(...)"
            ) from None

    def _check(self, clients: Clients, messages: Sequence[Message]) -> None:
        self.check_registered(clients)
        if not isinstance(self.lane.task, LaneTurns):
            raise BadLaneError(f"the lane {self.lane.name} gathers calls, and takes no tasks")
        for message in messages:
            if message.name is not None or message.max_attempts is not None:
                raise BadLaneError(
                    f"{message.path}: a task in a lane takes neither name nor max_attempts"
                )
            if self.lane.order and message.at is not None:
                raise BadLaneError(
                    f"{message.path}: the lane {self.lane.name} has an order, so a task of it "
                    "takes no delay: it would hold up all others"
                )
