"""Declared schedules: one in the code, or one for each user in rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollforward.datastore.transactions import is_in_transaction, transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import MessageLane
from rollforward.runtime.process.optional_clients import optional_clients
from rollforward.runtime.texts import has_unpaired_surrogate
from rollforward.schedules import cron as times
from rollforward.schedules.cron import Missed
from rollforward.schedules.entities import row_key
from rollforward.schedules.ticks import DeclaredSchedule, delete_row, put_row
from rollforward.tasks.declaration import task
from rollforward.tasks.parameters import declared_name, lane_key

# Behind it the key of a row has a bar, and the id.
NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")
MAX_ID_BYTES = 500


@dataclass(frozen=True)
class Schedule(DeclaredSchedule):
    """A schedule that is in the code."""

    cron: str = ""
    tz: str = "UTC"
    lane: MessageLane | None = None

    def lane_of(self, row_id: str) -> MessageLane | None:
        return self.lane


@dataclass(frozen=True)
class UserSchedules(DeclaredSchedule):
    """Schedules in rows: one for each user, or for any other id.

    REMINDERS = UserSchedules("reminders", remind, missed="once", lane=BY_USER)

    Attributes:
        lane: Returns the key of a lane in which the work of an id waits: a lane, or a function.
    """

    lane: Callable[[str], MessageLane] | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise times.BadScheduleError(f"name must match {NAME.pattern}, got {self.name!r:.100}")
        times.check_missed(self.missed)

    def lane_of(self, row_id: str) -> MessageLane | None:
        return self.lane(row_id) if self.lane is not None else None

    @optional_clients
    def put(self, clients: Clients, row_id: str, cron: str, work: Any, *, tz: str = "UTC") -> None:
        """Set the schedule of an id: `put("user-17", "0 8 * * *", remind.bind("u17"), tz=...)`.

        In a transaction it is committed with that. A call that changes nothing writes nothing.

        Raises:
            BadScheduleError, BadArgumentsError, TooLargeError: nothing was written.
            BadLaneError: nor if the id can be no key of the lane.
            UnknownTaskError: nor if no registry of the app has the work, or the lane.
        """
        times.check(cron, tz)
        _check_id(row_id)
        self.task.check_registered(clients)
        lane = self.lane_of(row_id)
        if lane is not None:
            lane_key(lane).check_registered(clients)
        body = self.task.message(work).body.decode()
        key = row_key(self.name, row_id)

        def write() -> None:
            put_row(clients, key, cron, tz, body)

        write() if is_in_transaction() else transact(write)

    def remove(self, row_id: str) -> None:
        """Remove the schedule of an id; a tick that was enqueued before still works.

        Raises:
            BadScheduleError: no schedule can have this id.
        """
        _check_id(row_id)
        delete_row(row_key(self.name, row_id))


def _check_id(row_id: object) -> None:
    if not isinstance(row_id, str):
        raise times.BadScheduleError(f"an id must be a text, got {row_id!r:.100}")
    if has_unpaired_surrogate(row_id):
        raise times.BadScheduleError("an id contains an unpaired surrogate")
    if not 0 < len(row_id.encode()) <= MAX_ID_BYTES:
        raise times.BadScheduleError(
            f"an id must have 1 to {MAX_ID_BYTES} bytes, got {row_id!r:.100}"
        )


def schedule(
    cron: str,
    *,
    tz: str = "UTC",
    missed: Missed = "once",
    queue: str = "default",
    lane: MessageLane | None = None,
) -> Callable[[Callable[..., object]], Schedule]:
    """Declare that the function below runs at the times of a cron expression.

    A parameter `at: datetime.datetime` gets the time of the tick. A first parameter of the type
    `Clients` gets the clients.

    Args:
        cron: Five fields: minute, hour, day of the month, month, day of the week.
        tz: A zone by name; its wall clock counts.
        missed: After a downtime run the last missed tick "once", run "all", or "skip" them.
        queue: A queue of queue.yaml.
        lane: Key of a lane in which each tick's work waits for its turn: `lane=NIGHTLY("all")`.

    Raises:
        BadScheduleError: the expression, the zone or `missed` cannot be read.
        BadArgumentsError: `lane` is no key of a lane.
        TypeError: by the decorator, when the function has another form than a schedule's.
    """
    times.check(cron, tz)
    times.check_missed(missed)
    if lane is not None:
        lane_key(lane)

    def declare(function: Callable[..., object]) -> Schedule:
        name = declared_name(function)
        work = task(f"/tasks/schedules/{name}", queue=queue)(function)
        signature = getattr(work.args, "__signature_of_task__", None)
        parameters = set(signature.parameters) if signature is not None else {work.args.__name__}
        if not parameters <= {"at"}:
            raise TypeError(
                f"{function.__qualname__} may have one parameter, `at: datetime.datetime`, the "
                f"time of the tick, got {', '.join(sorted(parameters))}"
            )
        return Schedule(name, work, missed, cron, tz, lane)

    return declare
