"""The bell of a table: one task folds all that waits, however many saves ask for it.

A save commits its updates as rows of the outbox, and then rings. The first one to ring creates the
task, and notes so in memcached. The others find the note, and create none. The task takes the note
away before it lists the waiting updates:

| a save has committed and rings | the task | the update |
|---|---|---|
| and finds no note | is created by this save | is listed by it |
| and finds a note | takes it away later, and lists after that | is listed by it |
| after the note was taken away | is created again | is listed by one of both |

Of saves that one commit has taken, the first to ring for a time does so for all: its ring began
after the commit of each, so its task lists their updates. The process remembers when the last ring
of a save began for each time.

So memcached, if it answers, loses no ring; a note whose task was never created ends after some
seconds. Without memcached each commit creates a task. A lost ring delays updates until the next
one, or until the sweep of the outbox creates tasks of their own for them; so does a ring that
fails, for the saves that have relied on it.
"""

from __future__ import annotations

import datetime
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollforward import outbox
from rollforward.datastore.transactions import Transaction, current_transaction
from rollforward.materialized_views.updates import FoldTable
from rollforward.materialized_views.updating.pacing import TablePace
from rollforward.materialized_views.view import View
from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import Task

# A note outlives its task's creation by this: a task that was never created is asked for again.
NOTE_S = 5
# Rings for busy rows fall on multiples of this, so that one task serves many rows.
TICK_MS = 100
_TICK = datetime.timedelta(milliseconds=TICK_MS)
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
# A save of more rows of a table than this asks for a fold now, which knows when the others are due.
MAX_ASKED = 20
# Rings that a process remembers. It rings once more for those that it has forgotten.
MAX_RINGS = 1_000


@dataclass(frozen=True)
class Bell:
    """Creates the tasks that fold the tables of a group."""

    task: Task[FoldTable]

    def ring_on_commit(self, clients: Clients, view: type[View], table: str, row: str) -> None:
        """Ring for a row once the transaction that this code runs in is committed."""
        transaction = current_transaction()
        name = f"views:bell:{self.task.path}"
        rings = transaction.hook(name, lambda: _Rings(self, clients, transaction))
        rings.rows.setdefault(table, (view, {}))[1][row] = None

    def ring_for(
        self,
        clients: Clients,
        view: type[View],
        table: str,
        rows: Sequence[str],
        *,
        committed_s: float | None = None,
    ) -> None:
        """Ring for the time at which each of some rows may be written.

        Args:
            committed_s: When their updates were committed, by `time.monotonic`: a ring of this
                process that began later serves them. None: only one that begins now does.
        """
        if len(rows) > MAX_ASKED:
            ticks_ms = {0}
        else:
            pace = TablePace.read(clients, view, table)
            ticks_ms = {tick_of(pace.due_at(row)) for row in rows}
        rings = clients.process_state.get_or_create("views:rings", RecentRings)
        for args in (FoldTable(table, tick_ms) for tick_ms in ticks_ms):
            if not rings.begin(args, math.inf if committed_s is None else committed_s):
                continue
            try:
                self._ring(clients, args)
            except BaseException:
                rings.forget(args)
                raise

    def ring(self, clients: Clients, table: str, at: datetime.datetime | None) -> None:
        """Ask for a fold of a table at some time; None: now."""
        self._ring(clients, FoldTable(table, tick_of(at)))

    def _ring(self, clients: Clients, args: FoldTable) -> None:
        note, ahead_s = _note(args), 0
        at = None
        if args.tick_ms:
            at = datetime.datetime.fromtimestamp(args.tick_ms / 1000, datetime.UTC)
            ahead_s = max(0, int((at - clients.clock.now()).total_seconds()) + 1)
        now_ms = int(clients.clock.now().timestamp() * 1000)
        value, lasts_s = str(now_ms).encode(), NOTE_S + ahead_s
        if not clients.cache.add(note, value, lasts_s):
            if _is_valid(clients.cache.get(note), now_ms, lasts_s):
                return
            clients.cache.set(note, value, lasts_s)
        outbox.create_later(clients, [self.task.message(args, at=at)])

    def acknowledge(self, clients: Clients, args: FoldTable) -> None:
        """Take the note of a task away, before the task lists the waiting updates."""
        clients.cache.delete(_note(args))


def tick_of(at: datetime.datetime | None) -> int:
    """Return the time of a ring in milliseconds; 0: now.

    >>> tick_of(datetime.datetime(1970, 1, 1, 0, 0, 1, 1, datetime.UTC))
    1100
    """
    return 0 if at is None else -((_EPOCH - at) // _TICK) * TICK_MS


def _is_valid(value: bytes | None, now_ms: int, lasts_s: int) -> bool:
    """Return whether a note is there, and neither too old nor from a wrong clock."""
    try:
        return abs(now_ms - int(value or b"")) <= lasts_s * 1000
    except ValueError:
        return False


def _note(args: FoldTable) -> str:
    return f"views:bell:{args.table}:{args.tick_ms}"


class RecentRings:
    """The last ring of this process's saves for each fold: when it began, by `time.monotonic`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_s: dict[FoldTable, float] = {}

    def begin(self, args: FoldTable, committed_s: float) -> bool:
        """Return whether a caller has to ring; not if a ring began after its commit."""
        with self._lock:
            if self._began_s.get(args, -math.inf) >= committed_s:
                return False
            if len(self._began_s) >= MAX_RINGS:
                self._began_s.clear()
            self._began_s[args] = time.monotonic()
            return True

    def forget(self, args: FoldTable) -> None:
        """Forget a ring that has failed: the next caller rings."""
        self._began_s.pop(args, None)


@dataclass
class _Rings:
    """The rows to ring for at the end of a transaction, by table."""

    bell: Bell
    clients: Clients
    transaction: Transaction
    # Also those of an attempt that failed: it may be committed.
    rows: dict[str, tuple[type[View], dict[str, None]]] = field(default_factory=dict)

    def on_retry(self, cause: Exception) -> None:
        """Keep the rows."""

    def on_commit(self) -> None:
        for table, (view, rows) in self.rows.items():
            committed_s = self.transaction.committed_s
            self.bell.ring_for(self.clients, view, table, list(rows), committed_s=committed_s)

    def on_outcome_unknown(self) -> None:
        """Ring as after a commit, since an attempt may be committed."""
        if self.transaction.doubt is not None:
            self.on_commit()
