"""Load on every pattern of the demo app, by its pages, with checks of its exactness.

Each writer retries a write until it is accepted. The expected data follows from the accepted
writes, and the checks read the actual data from Datastore, bypassing the app.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable
from unittest import mock

import requests

import main
from benchmarks.harness.books import (
    GIVE_UP_S,
    LOOK_EVERY_S,
    TOKEN,
    Books,
    Writers,
    until,
    until_accepted,
)
from benchmarks.harness.dev_server import Stack
from benchmarks.healing.app import WORK
from handlers.settings import DemoSettings
from models.quilt import quilt_key
from pipelines.counters.counters import FORMS, KEY, SHARDED
from pipelines.invitations.parties import party_of
from pipelines.weblog.progress import observe
from rollforward.continuations.entities import FINISHED, RUNNING
from rollforward.continuations.progress import progress
from rollforward.local.shell import find
from rollforward.pull_queues.entities import items_of
from rollforward.runtime import Clients

GUESTS = 100
LINES = 60
SEND_EVERY_S, QUILT_EVERY_S, LOG_EVERY_S, CLICK_EVERY_S = 4.0, 4.0, 2.0, 0.3
ITEM_EVERY_S = 0.2
MAX_CLICK = 1_000
LEASERS, LEASED = 2, 20
NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
LINE = '192.0.2.{} - - [{:%d/%b/%Y:%H:%M:%S} +0000] "GET /cakes/{} HTTP/1.1" 200 512 "-" "Ada"\n'


@dataclass(frozen=True)
class Account:
    """Counts of a pattern's accepted and done work.

    Attributes:
        doubled: Work done more than once although the pattern promises once.
        is_still: Whether nothing is in progress, so that missing work is lost.
    """

    accepted: int
    done: int
    doubled: int = 0
    is_still: bool = True

    @classmethod
    def counted(cls, accepted: int, counted: int) -> Account:
        """Return the account of a count, which may be too high."""
        return cls(accepted, min(counted, accepted), max(0, counted - accepted))

    @property
    def lost(self) -> int:
        return self.accepted - self.done

    @property
    def is_exact(self) -> bool:
        return self.is_still and not (self.lost or self.doubled)


class Load(Protocol):
    """A writer to one pattern that knows the expected data."""

    def open(self) -> None:
        """Create the target of the writes."""

    def write(self, is_over: threading.Event) -> None:
        """Write until it is over; on return every write that began has been accepted."""

    def account(self) -> Account:
        """Return the counts of accepted and done work."""


@runtime_checkable
class LooksAgain(Protocol):
    """A load whose account normally skips work that was exact before."""

    def look_again(self) -> None:
        """Let the account judge all work again that is still stored."""


class Visitor:
    """Sends forms until they are accepted."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.session = requests.Session()

    def send(self, page: str, path: str, form: Mapping[str, str], log: bytes = b"") -> None:
        """Send a form of a page, with an optional log file, until it is accepted."""
        app = self.stack.where["app"]

        def send() -> requests.Response:
            shown = self.session.get(app + page, timeout=30).text
            token = TOKEN.search(shown)
            sent = {**form, "csrf_token": token.group(1) if token else ""}
            files = {"file": ("access.log", log)} if log else None
            url = app + path
            return self.session.post(url, sent, files=files, timeout=30, allow_redirects=False)

        until_accepted(send, {303})


class Mails:
    """A party whose guests get a mail about each of its changes."""

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.visitor, self.clients = Visitor(stack), clients
        self.party = secrets.token_hex(16)
        self.page = f"/invitations/{self.party}"
        self.sends = 0
        # A party stores its latest sends only.
        self.done: set[str] = set()

    def open(self) -> None:
        self.visitor.send("/invitations", "/invitations", {"id": self.party, **self._details()})
        form = {"id": secrets.token_hex(16), "count": str(GUESTS)}
        self.visitor.send(self.page, f"{self.page}/sample-guests", form)
        until(lambda: not self._is_running(party_of(self.party).imports), "guests are not there")

    def write(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            self.visitor.send(self.page, f"{self.page}/details", self._details())
            self.visitor.send(self.page, f"{self.page}/send", {})
            self.sends += 1
            is_over.wait(SEND_EVERY_S)

    def account(self) -> Account:
        runs = {send["run_id"] for send in party_of(self.party).sends}
        self.done |= {run for run in runs - self.done if self._is_done(run)}
        return Account.counted(self.sends, len(self.done))

    def _is_done(self, run: str) -> bool:
        """Return whether a send has reached all guests, except the ones left to another send."""
        seen = progress(run)
        totals = seen.totals
        is_whole = totals.failed == 0 and totals.done + totals.skipped == GUESTS
        return seen.state == FINISHED and is_whole

    def _is_running(self, runs: list[str]) -> bool:
        return any(progress(run, dots=False).state == RUNNING for run in runs)

    def _details(self) -> dict[str, str]:
        """Return a change of the party."""
        place = f"Room {self.sends}"
        return {"title": "Party", "host": "Ada", "place": place, "when": "2031-01-01T20:00"}


class Quilts:
    """Quilts of 64 squares, each a member of a batch."""

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.visitor = Visitor(stack)
        self.open_quilts: list[str] = []
        # The app stores the newest forty.
        self.done = 0

    def open(self) -> None:
        """Do nothing, as this load needs no target."""

    def write(self, is_over: threading.Event) -> None:
        chosen = {"size": "8", "palette": "dusk", "pattern": "waves", "pace": "fast"}
        while not is_over.is_set():
            quilt = secrets.token_hex(16)
            self.visitor.send("/quilt", "/quilt", {"id": quilt, **chosen})
            self.open_quilts.append(quilt)
            is_over.wait(QUILT_EVERY_S)

    def account(self) -> Account:
        still_open = [quilt for quilt in self.open_quilts if not self._is_done(quilt)]
        self.done += len(self.open_quilts) - len(still_open)
        self.open_quilts = still_open
        return Account(self.done + len(still_open), self.done)

    def _is_done(self, quilt: str) -> bool:
        row = quilt_key(quilt).get()
        return row is not None and row.outcome == "succeeded"


class Weblog:
    """Access logs of a minute each, counted by a stream's windows."""

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.visitor, self.clients = Visitor(stack), clients
        self.logs = 0

    def open(self) -> None:
        """Do nothing, as this load needs no target."""

    def write(self, is_over: threading.Event) -> None:
        page = "/streams/weblog"
        while not is_over.is_set():
            form = {"id": secrets.token_hex(16), "pace": "fast"}
            self.visitor.send(page, f"{page}/logs", form, self._log())
            self.logs += 1
            is_over.wait(LOG_EVERY_S)

    def _log(self) -> bytes:
        begin = NOON + datetime.timedelta(seconds=self.logs * LINES)
        times = (begin + datetime.timedelta(seconds=second) for second in range(LINES))
        return "".join(LINE.format(i % 50, at, i % 7) for i, at in enumerate(times)).encode()

    def account(self) -> Account:
        seen, accepted = observe(self.clients), self.logs * LINES
        hits = seen.totals.computations["hits"]
        counts = seen.totals.requests, hits.records + hits.late
        doubled = max(0, max(counts) - accepted)
        return Account(accepted, min(*counts, accepted), doubled, is_still=not seen.is_moving)


class Clicks:
    """A sharded counter, whose account has sums of amounts.

    The amounts differ, so that a lost click and a click counted twice do not cancel out.
    """

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.visitor, self.clients = Visitor(stack), clients
        self.amount = 0

    def open(self) -> None:
        """Do nothing, as this load needs no target."""

    def write(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            amount = random.randint(1, MAX_CLICK)
            form = {"id": secrets.token_hex(16), "amount": str(amount)}
            self.visitor.send("/counters", "/counters/clicks", form)
            self.amount += amount
            is_over.wait(CLICK_EVERY_S)

    def account(self) -> Account:
        # Each click adds to both counters, in one commit.
        sums = [SHARDED.total(self.clients, key).value for key in (KEY, FORMS)]
        doubled = max(0, max(sums) - self.amount)
        return Account(self.amount, min(*sums, self.amount), doubled)


class Sums:
    """Sums by the API, which use a fork-join queue, and a school, whose bars are a view."""

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.books = Books(stack, Writers(amounts=1, students=1, pause_s=0.2))

    def open(self) -> None:
        self.books.open()

    def write(self, is_over: threading.Event) -> None:
        with self.books.writing():
            is_over.wait()

    def account(self) -> Account:
        total, items = self.books.totals()
        is_sum = items != self.books.items or total == self.books.amount
        return replace(Account.counted(self.books.items, max(0, items)), is_still=is_sum)

    def bars(self) -> Account:
        """Return the account of the students, as counted by the bars of the view."""
        accepted = Counter(student.grade for student in self.books.students)
        counted = self.books.bars()
        done, doubled = (accepted & counted).total(), (counted - accepted).total()
        return Account(accepted.total(), done, doubled)


class Leased:
    """A pull queue of the benchmark's own, with leasers over HTTP that ack their leases."""

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.stack, self.clients = stack, clients
        self.added = 0
        self.leased: set[str] = set()
        self.is_over = threading.Event()

    def open(self) -> None:
        """Do nothing, as this load needs no target."""

    def write(self, is_over: threading.Event) -> None:
        """Add items; leasers work until all are done."""
        self.is_over.clear()
        for _ in range(LEASERS):
            threading.Thread(target=self._lease, daemon=True).start()
        while not is_over.is_set():
            key = {"Idempotency-Key": secrets.token_hex(16)}
            until_accepted(partial(self._post, "items", {"payload": "work"}, key), {201})
            self.added += 1
            is_over.wait(ITEM_EVERY_S)

    def account(self) -> Account:
        is_left = items_of(WORK.name).get(keys_only=True) is not None
        account = Account.counted(self.added, len(self.leased))
        if account.is_exact and not is_left:
            self.is_over.set()
        return replace(account, is_still=not is_left)

    def _lease(self) -> None:
        while not self.is_over.is_set():
            with contextlib.suppress(requests.RequestException):
                answer = self._post("lease", {"limit": LEASED, "lease_s": 3})
                if leases := answer.json()["leases"] if answer.ok else []:
                    self.leased |= {lease["id"] for lease in leases}
                    self._post("ack", {"tokens": [lease["token"] for lease in leases]})
            self.is_over.wait(LOOK_EVERY_S)

    def _post(
        self, verb: str, body: dict[str, Any], headers: Mapping[str, str] = {}
    ) -> requests.Response:
        where = self.stack.where
        token = requests.get(f"{where['console']}/api/v1/identity-token", timeout=30).text
        url = f"{where['app']}/api/v1/pull/{WORK.name}/{verb}"
        signed = {**headers, "Authorization": f"Bearer {token}"}
        return requests.post(url, json=body, headers=signed, timeout=30)


class AllLoads:
    """The loads of every pattern at once, and optional further loads."""

    def __init__(
        self, stack: Stack, extra: Sequence[Callable[[Stack, Clients], Load]] = ()
    ) -> None:
        with mock.patch.dict(os.environ, find(stack.where["console"]).environment):
            self.clients = main.open_clients(DemoSettings.from_environment(os.environ))
        sums = Sums(stack, self.clients)
        kinds = (Mails, Quilts, Weblog, Clicks, Leased, *extra)
        loads: list[Load] = [kind(stack, self.clients) for kind in kinds]
        self._loads: list[Load] = [sums, *loads]
        self._looks = {type(load).__name__.lower(): (load, load.account) for load in self._loads}
        self._looks["grades"] = sums, sums.bars
        self._threads = futures.ThreadPoolExecutor(len(self._loads))
        self._writers: dict[Load, futures.Future[None]] = {}

    def open(self) -> None:
        """Create the targets of all loads."""
        with self.clients.context():
            for load in self._loads:
                load.open()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Run the writers during the block; writes that began may be accepted after it."""
        is_over = threading.Event()
        for load in self._loads:
            self._writers[load] = self._threads.submit(load.write, is_over)
        try:
            yield
        finally:
            is_over.set()

    def until_exact(self, began: float) -> dict[str, float]:
        """Return for each pattern the seconds from `began` until all its accepted work was done.

        GIVE_UP_S or more means that it took longer.
        """
        with futures.ThreadPoolExecutor(len(self._looks)) as threads:
            seconds = {
                name: threads.submit(self._seconds, load, account, began)
                for name, (load, account) in self._looks.items()
            }
            return {name: future.result() for name, future in seconds.items()}

    def accounts(self) -> dict[str, Account]:
        """Return the account of each pattern."""
        with self.clients.context():
            return {name: account() for name, (_, account) in self._looks.items()}

    def look_again(self) -> None:
        """Let the accounts judge work again that was exact before."""
        with self.clients.context():
            for load in self._loads:
                if isinstance(load, LooksAgain):
                    load.look_again()

    def _seconds(self, load: Load, account: Callable[[], Account], began: float) -> float:
        self._writers[load].result()
        with self.clients.context():
            while (seconds := time.monotonic() - began) < GIVE_UP_S and not account().is_exact:
                time.sleep(LOOK_EVERY_S)
        return round(seconds, 1)
