"""Adding to a key of a lane: alone, or in the caller's transaction.

In a lane with an order, the place of a task is behind the last one of its key. It is chosen when
the transaction's body has run to its end, by a look at the rows outside of the transaction. So of
two transactions that conflict, or of which one began after the other had been committed, the later
one has the later place, although their clocks may differ.

Lost on failure: nothing. A commit whose reply was lost may be made again. If one row of the first
attempt is there, all were: missing rows have run, and are not written again. Without such a row a
task that has run meanwhile may run once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore import current
from rollforward.datastore.batched import MAX_COMMIT_BYTES, batched
from rollforward.datastore.queries import request_of_range, run_query
from rollforward.datastore.transactions import OUTCOME_UNKNOWN, Transaction, current_transaction
from rollforward.datastore.versions import commit_of_puts
from rollforward.lanes import hints
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneTask, id_at, lane_id_of, place_of, task_key
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.messages import Message
from rollforward.runtime.sharing.conditional_writes import apply_together
from rollforward.tasks.declaration import Task
from rollforward.tasks.stored import arguments
from rollforward.tasks.stored.names import MAX_BODY_BYTES
from rollforward.tracing import TRACE_HEADER

if TYPE_CHECKING:
    from rollforward.lanes.declaration import LaneKey

MAX_PER_COMMIT = 400
_ROW_BYTES = 1_500  # Of a row beside its arguments, at most about.
MAX_ATTEMPTS = 3
PAUSE_S = 0.05

_HOOK = "lanes"


def add(
    clients: Clients,
    task: Task[LaneArgs],
    lane_id: str,
    messages: Sequence[Message],
    *,
    is_ordered: bool,
    after_s: float = 0.0,
) -> None:
    """Let messages wait, up to 400 a commit, in their order.

    Args:
        after_s: Seconds after which they may run.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer. If the outcome is
            unknown, the messages of that commit may wait or not; earlier commits hold.
    """
    small = (
        arguments.with_large_arguments(clients, message, most_bytes=MAX_BODY_BYTES)
        for message in messages
    )
    for part in _parts(small):
        place = _next_place(clients, lane_id, is_ordered=is_ordered)
        unique = clients.new_id()[:12]
        rows = [
            _row(
                clients,
                id_at(lane_id, _at(place, message) + number, f"{unique}{number:04x}"),
                message,
            )
            for number, message in enumerate(part)
        ]
        _insert(clients, rows)
        for message in part:
            arguments.keep(clients, message.body)
        for at in dict.fromkeys(message.at for message in part):
            hints.hint_later(clients, task, [lane_id], at, after_s=after_s if at is None else 0.0)


def _parts(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Cut messages into parts that fit into a commit, in their order."""
    part: list[Message] = []
    size = 0
    for message in messages:
        own_bytes = len(message.body) + _ROW_BYTES
        if len(part) == MAX_PER_COMMIT or (part and size + own_bytes > MAX_COMMIT_BYTES):
            yield part
            part, size = [], 0
        part.append(message)
        size += own_bytes
    if part:
        yield part


def add_in_transaction(
    clients: Clients,
    task: Task[LaneArgs],
    lane_id: str,
    message: Message,
    *,
    is_ordered: bool,
    after_s: float = 0.0,
) -> None:
    """Let a message wait, by the commit of the transaction that this code runs in.

    Raises:
        NoTransactionError: this is not the body of `transact`.
    """
    transaction = current_transaction()
    adding = transaction.hook(_HOOK, lambda: _Adding(clients, transaction))
    if len(message.body) > MAX_BODY_BYTES:
        owner = transaction.id_of(_HOOK, lane_id, message.digest())
        message = arguments.store_in_transaction(clients, message, owner, expires=False)
    adding.added.append(_Added(task, lane_id, message, is_ordered, after_s))


@dataclass(frozen=True)
class PlacedMessage:
    """A message whose place in a key is known, and the end of its row's id."""

    key: LaneKey
    place: int
    unique: str
    message: Message


def add_placed(clients: Clients, placed: Sequence[PlacedMessage]) -> None:
    """Let messages wait at their places, 400 a commit; waiting ones stay unchanged.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: some may wait; call it again.
    """
    for part in batched(placed, MAX_PER_COMMIT):
        rows = [_row(clients, id_at(p.key.id, p.place, p.unique), p.message) for p in part]
        try:
            puts: list[tuple[ndb.Model, int | None]] = [(row, None) for row in rows]
            apply_together(clients, commit_of_puts(clients.datastore, puts))
        except rpc_errors.AlreadyExists:
            stored = ndb.get_multi([row.key for row in rows])
            missing = [row for row, old in zip(rows, stored, strict=True) if old is None]
            ndb.put_multi(missing)
    lanes = {p.key.lane: p.key.lane.task for p in placed}
    for lane, task in lanes.items():
        hints.hint_later(clients, task, [p.key.id for p in placed if p.key.lane is lane])


def put_first_in_transaction(
    clients: Clients, task: Task[LaneArgs], row_id: str, message: Message
) -> None:
    """Write the row of a message that its key waits for, in this transaction."""
    current.put(_row(clients, row_id, message))
    wake_after_transaction(clients, task, lane_id_of(row_id))


def wake_after_transaction(clients: Clients, task: Task[LaneArgs], lane_id: str) -> None:
    """Create a hint for a key that rests no more, after the commit of this transaction."""
    transaction = current_transaction()
    transaction.hook(_HOOK, lambda: _Adding(clients, transaction)).woken.append((task, lane_id))


@dataclass(frozen=True)
class _Added:
    task: Task[LaneArgs]
    lane_id: str
    message: Message
    is_ordered: bool
    after_s: float


@dataclass
class _Place:
    """The place of the first task that an attempt adds to a key, and its rows.

    Attributes:
        rows: Their ids, by the ends of these, which are the same in each attempt.
        committed: Such ends, of attempts that are known to be committed.
    """

    start: int
    rows: dict[str, str] = field(default_factory=dict)
    committed: frozenset[str] = frozenset()


@dataclass
class _Adding:
    """The tasks that a transaction adds to lanes.

    Attributes:
        doubtful: Those of attempts that may be committed.
        places: Those in this attempt, by key of a lane.
        open_places: Those in attempts that may be committed.
    """

    clients: Clients
    transaction: Transaction
    added: list[_Added] = field(default_factory=list)
    doubtful: list[_Added] = field(default_factory=list)
    places: dict[str, _Place] = field(default_factory=dict)
    open_places: dict[str, list[_Place]] = field(default_factory=dict)
    woken: list[tuple[Task[LaneArgs], str]] = field(default_factory=list)

    def before_commit(self) -> None:
        """Write the rows, each key's behind the last one that is committed."""
        equal: Counter[tuple[str, str]] = Counter()  # Two equal tasks are two.
        for added in self.added:
            lane_id, digest = added.lane_id, added.message.digest()
            if lane_id not in self.places:
                self.places[lane_id] = self._place(lane_id, is_ordered=added.is_ordered)
            placed = self.places[lane_id]
            unique = f"{self.transaction.id[:12]}{digest}{equal[lane_id, digest]:04x}"
            equal[lane_id, digest] += 1
            if unique not in placed.committed:
                place = _at(placed.start, added.message) + len(placed.rows)
                placed.rows[unique] = id_at(lane_id, place, unique)
                current.put(_row(self.clients, placed.rows[unique], added.message))

    def _place(self, lane_id: str, *, is_ordered: bool) -> _Place:
        """Return the place of the first task of a key, behind rows that are known as committed."""
        known = self.open_places.get(lane_id, [])
        committed = [place for place in known if _any_exists(place.rows.values())]
        if committed:
            start = max(place.start + len(place.rows) for place in committed)
            return _Place(start, committed=frozenset().union(*(place.rows for place in committed)))
        if known and not is_ordered:
            return _Place(known[0].start)
        return _Place(_next_place(self.clients, lane_id, is_ordered=is_ordered))

    def on_retry(self, cause: Exception) -> None:
        if isinstance(cause, OUTCOME_UNKNOWN):
            self.doubtful += self.added
            for lane_id, place in self.places.items():
                self.open_places.setdefault(lane_id, []).append(place)
        if self.transaction.doubt is None:
            self.woken = []
        self.added, self.places = [], {}

    def on_commit(self) -> None:
        tasks = {
            (added.lane_id, added.message.at, added.after_s): added.task for added in self._all()
        }
        for (lane_id, at, after_s), task in tasks.items():
            hints.hint_later(self.clients, task, [lane_id], at, after_s=after_s)
        for task, lane_id in self.woken:
            hints.unmark(self.clients, lane_id)
            hints.hint_later(self.clients, task, [lane_id])

    def on_outcome_unknown(self) -> None:
        """Create hints for rows that may be committed anyway."""
        if self.transaction.doubt is not None:
            self.on_commit()

    def _all(self) -> list[_Added]:
        return [*self.doubtful, *self.added]


def _insert(clients: Clients, rows: Sequence[ndb.Model]) -> None:
    """Insert rows; after a lost reply find out whether they were."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            puts: list[tuple[ndb.Model, int | None]] = [(row, None) for row in rows]
            apply_together(clients, commit_of_puts(clients.datastore, puts))
        except rpc_errors.AlreadyExists:
            return  # No other rows have these ids: the answer to an earlier request was lost.
        except OUTCOME_UNKNOWN:
            # They may have been inserted and have run: another insert would bring them back.
            if rows[-1].key.get() is None:
                raise
            return
        except rpc_errors.Aborted:
            if attempt == MAX_ATTEMPTS:
                raise
            clients.clock.sleep(PAUSE_S)
        else:
            return


def _row(clients: Clients, row_id: str, message: Message) -> LaneTask:
    return LaneTask(
        key=task_key(row_id),
        place=row_id,
        path=message.path,
        body=message.body.decode(),
        added=naive_utc(clients.clock.now()),
        traceparent=message.headers.get(TRACE_HEADER),
        not_before=naive_utc(message.at) if message.at is not None else None,
    )


def _at(place: int, message: Message) -> int:
    return place if message.at is None else max(place, place_of(message.at))


def _next_place(clients: Clients, lane_id: str, *, is_ordered: bool) -> int:
    """Return the place for the next task of a key: now, in an order behind its last task."""
    place = place_of(clients.clock.now())
    if not is_ordered:
        return place
    kind, bounds = LaneTask._get_kind(), (f"{lane_id}|", f"{lane_id}|~")
    last = request_of_range(clients.datastore, kind, "place", *bounds, 1, is_reversed=True)
    results = run_query(clients.datastore, last)
    if not results:
        return place
    last_id = results[0].entity.key.path[-1].name
    return max(place, int(last_id.rpartition("|")[2].partition("-")[0]) + 1)


def _any_exists(row_ids: Iterable[str]) -> bool:
    return any(row is not None for row in current.get_multi(list(map(task_key, row_ids))))
