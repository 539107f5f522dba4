"""The loads: what clients do, which rows show its end, and what the totals must be."""

from __future__ import annotations

from collections import Counter as Counts
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.cloud import ndb

import rollforward as rf
from rollforward.batches import Completed, TaskBatch
from rollforward.counters import Counter
from rollforward.fork_join import Batch, fork_join
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.runtime.errors import OutcomeUnknownError
from tests.simulation.curves.site import CLIENT, PROCESSOR, REQUEST_S, WORKER, Site, SiteProcess

HOT = "hot"
CHORES = 4  # Workers beside the processes that increment an exact counter.
MEMBERS = 25


class CurveSum(ndb.Model):
    """The items of a key that were folded. Key: that key."""

    count = ndb.IntegerProperty(indexed=False, default=0)


class CurveMember(ndb.Model):
    """A member has run. Key: the batch and its number in it."""


class CurveEnd(ndb.Model):
    """The callback of a batch has run. Key: the batch."""

    members = ndb.IntegerProperty(indexed=False)


@dataclass(frozen=True)
class One:
    """An item."""


@dataclass(frozen=True)
class Member:
    id: str


@fork_join("curve-sums", queue="fork-join", period_s=1)
def add_up(clients: Clients, batch: Batch, items: Sequence[One]) -> None:
    row = CurveSum.get_by_id(batch.key) or CurveSum(id=batch.key)
    row.count += len(items)
    row.put()


@rf.task(queue="fan-out")
def save_member(clients: Clients, args: Member) -> None:
    CurveMember(id=args.id).put()


@rf.task(queue="default")
def end_batch(clients: Clients, args: Completed) -> None:
    CurveEnd(id=args.batch_id, members=args.done).put()


GATHERED = Counter("curve-gathered", mode="gathered", queue="fork-join")
EXACT = Counter("curve-exact", queue="default")
BATCHES = TaskBatch("curve-batches", members=[save_member], on_complete=end_batch)


@dataclass(frozen=True)
class CurveApp:
    """The app of all loads."""

    version: int = 1

    def registry(self) -> Registry:
        return Registry(add_up, GATHERED, EXACT, BATCHES, save_member, end_batch)


@dataclass
class Progress:
    """Items that clients have brought, and those of which the end was seen.

    Attributes:
        began_s: Since when items are counted and lags noted; None: not yet.
        offered: Items that were answered meanwhile.
        ended: Items whose end was seen meanwhile.
        answered: All items that were answered, by key.
        unknown: Items of which the client does not know whether they count.
    """

    site: Site
    began_s: float | None = None
    offered: int = 0
    ended: int = 0
    folds: int = 0
    lags_s: list[float] = field(default_factory=list)
    answered: Counts[str] = field(default_factory=Counts)
    unknown: int = 0
    _waiting: defaultdict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _totals: Counts[str] = field(default_factory=Counts)
    _ahead: Counts[str] = field(default_factory=Counts)

    def answer(self, key: str) -> None:
        """Note that a client's item was answered."""
        self.answered[key] += 1
        self.offered += self.began_s is not None
        if self._ahead[key]:  # It was folded before.
            self._ahead[key] -= 1
            self._note_lag(0.0)
        else:
            self._waiting[key].append(self.site.now_s)

    def fold(self, key: str, total: int) -> None:
        """Note that the total of a key has changed: its first items are in it."""
        added = total - self._totals[key]
        self._totals[key] = total
        self.end(added)
        self.folds += self.began_s is not None
        waiting = self._waiting[key]
        for _ in range(added):
            if waiting:
                self._note_lag(self.site.now_s - waiting.popleft())
            else:
                self._ahead[key] += 1

    def end(self, count: int, lag_s: float | None = None) -> None:
        """Note that items have ended, and after which time."""
        self.ended += count if self.began_s is not None else 0
        if lag_s is not None:
            self._note_lag(lag_s)

    def _note_lag(self, lag_s: float) -> None:
        if self.began_s is not None:
            self.lags_s.append(lag_s)


class Load:
    """A load of one pattern on a site."""

    role = WORKER  # Whose number the curve is about.

    def __init__(self, site: Site, progress: Progress, rate: float | None) -> None:
        """Begin the load.

        Args:
            rate: Items a second, of all clients; None: each brings one after the other.
        """
        self.site, self.progress = site, progress
        self.rate = rate
        site.on_commit = self.see
        for number in range(len(site.clients)):
            site.begin_client(number, self._client(number))

    @staticmethod
    def processes(n: int, clients: int) -> tuple[int, int]:
        """Return how many workers and how many clients there are."""
        return n, clients

    def _client(self, number: int) -> Callable[[SiteProcess], None]:
        def work(process: SiteProcess) -> None:
            site, turn = self.site, 0
            pause_s = len(site.clients) / self.rate if self.rate else 0.0
            due_s = site.now_s + site.chance.random() * (pause_s or 0.5)
            while not site.is_over:
                if due_s > site.now_s:
                    site.sleep(due_s - site.now_s)
                site.wait(PROCESSOR, REQUEST_S)
                with process.clients.context():
                    self.bring(process.clients, number, turn)
                turn, due_s = turn + 1, due_s + pause_s

        return work

    def _bring_one(self, key: str, call: Callable[[], object]) -> None:
        try:
            call()
        except OutcomeUnknownError:
            self.progress.unknown += 1
        else:
            self.progress.answer(key)

    def bring(self, clients: Clients, number: int, turn: int) -> None:
        """Bring a client's next item."""
        raise NotImplementedError

    def see(self, entity: Any) -> None:
        """Note what a commit has written."""

    def totals(self, clients: Clients) -> tuple[int, int]:
        """Return what is stored at the end, and what clients have brought."""
        raise NotImplementedError

    def is_exact(self, clients: Clients) -> bool:
        """Return whether nothing is lost, and nothing doubled."""
        stored, brought = self.totals(clients)
        return brought <= stored <= brought + self.progress.unknown


class OneKey(Load):
    """Items of one key of a fork-join queue."""

    keys = 1

    def bring(self, clients: Clients, number: int, turn: int) -> None:
        key = f"k{(number + turn) % self.keys}"
        self._bring_one(key, lambda: add_up.insert(clients, key, One()))

    def see(self, entity: Any) -> None:
        last = entity.key.path[-1]
        if last.kind == "CurveSum":
            self.progress.fold(last.name, entity.properties["count"].integer_value)

    def totals(self, clients: Clients) -> tuple[int, int]:
        stored = sum(row.count for row in CurveSum.query().fetch())
        return stored, sum(self.progress.answered.values())


class ManyKeys(OneKey):
    """Items of 64 keys of a fork-join queue."""

    keys = 64


class Gathered(Load):
    """Increments of one gathered counter."""

    counter = GATHERED

    def bring(self, clients: Clients, number: int, turn: int) -> None:
        self._bring_one(HOT, lambda: self.counter.increment(clients, HOT))

    def see(self, entity: Any) -> None:
        if entity.key.path[-1].kind == "CounterTotal":
            self.progress.fold(HOT, entity.properties["count"].integer_value)

    def totals(self, clients: Clients) -> tuple[int, int]:
        return self.counter.total(clients, HOT).value, self.progress.answered[HOT]


class Exact(Gathered):
    """Increments of one exact counter, whose clients are what is counted: their work is its own."""

    counter, role = EXACT, CLIENT

    @staticmethod
    def processes(n: int, clients: int) -> tuple[int, int]:
        return CHORES, n

    def bring(self, clients: Clients, number: int, turn: int) -> None:
        before = self.progress.answered[HOT]
        began_s = self.site.now_s
        super().bring(clients, number, turn)
        if self.progress.answered[HOT] > before:
            self.progress.end(1, self.site.now_s - began_s)

    def see(self, entity: Any) -> None:
        """An increment that has returned is in the total."""


class Members(Load):
    """Members of batches: clients populate a batch, and the next one when it is complete."""

    def __init__(self, site: Site, progress: Progress, rate: float | None) -> None:
        self._last_s: dict[str, float] = {}
        self._seen: set[str] = set()
        self._complete: set[str] = set()
        super().__init__(site, progress, None)

    @staticmethod
    def processes(n: int, clients: int) -> tuple[int, int]:
        return n, max(4, 2 * n)

    def bring(self, clients: Clients, number: int, turn: int) -> None:
        batch = f"b{number}-{turn}"
        members = [(save_member, Member(f"{batch}/{n}")) for n in range(MEMBERS)]
        BATCHES.populate(clients, batch, members, seal=True)
        self.progress.answered[batch] = MEMBERS
        self.progress.offered += MEMBERS if self.progress.began_s is not None else 0
        while batch not in self._complete and not self.site.is_over:
            self.site.sleep(0.05)

    def see(self, entity: Any) -> None:
        last, now_s = entity.key.path[-1], self.site.now_s
        if last.kind == "CurveMember" and last.name not in self._seen:
            self._seen.add(last.name)
            self._last_s[last.name.partition("/")[0]] = now_s
            self.progress.end(1)
        elif last.kind == "CurveEnd" and last.name not in self._complete:
            self._complete.add(last.name)
            self.progress.end(0, now_s - self._last_s[last.name])

    def totals(self, clients: Clients) -> tuple[int, int]:
        """Count members by their rows, and as the callbacks got them."""
        rows = len(CurveMember.query().fetch(keys_only=True))
        told = sum(row.members for row in CurveEnd.query().fetch())
        return min(rows, told), max(rows, told, sum(self.progress.answered.values()))


LOADS: dict[str, type[Load]] = {
    "fork-join-1": OneKey,
    "fork-join-64": ManyKeys,
    "gathered": Gathered,
    "exact": Exact,
    "batches": Members,
}
