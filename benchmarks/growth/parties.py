"""Parties that grow: their mails, and the polls of their page during the mailing."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.growth.spent import STORE, Spent, check, growth_of, spend
from benchmarks.harness.results import Result
from benchmarks.harness.testbed import ROOT, Bench, open_testbed
from handlers.invitations.forms import made_up_guests
from pipelines.invitations import imports, parties, sending
from pipelines.invitations.parties import PartyDetails
from rollforward.continuations.progress import progress

SIZES = (1_000, 10_000, 99_000)  # A list has at most 100,000 rows.
WARM = 300
WHEN = datetime.datetime(2030, 5, 1, 19, 30)  # noqa: DTZ001  As its form has it.
DETAILS = PartyDetails("Garden party", "Brett", "Roof", WHEN)
# The interval of the page's script when it gets no live updates.
ASKS_AGAIN_S = 0.4
POLLS = 10


def measure(sizes: Sequence[int]) -> Iterator[Result]:
    """Invite and mail as many guests as each size, on the stack and queues of the dev server."""
    with open_testbed(
        "benchmarks.growth.app:serve()",
        emulator=STORE,
        is_cached=True,
        queue_yaml=(ROOT / "queue.yaml").read_text(),
        environment={"BENCH_BYTES": "1"},
    ) as bench:
        _party(bench, WARM)
        by_size = {size: _party(bench, size) for size in sizes}
    invited = {size: party.invited.an_item() for size, party in by_size.items()}
    yield from growth_of("invitations", "a guest", invited, "guests")
    mails = {size: party.mailed.an_item() for size, party in by_size.items()}
    yield from growth_of("mails", "a mail, with an open page", mails, "guests")
    polls = {size: party.polls() for size, party in by_size.items()}
    yield from growth_of("polls", "of the page", polls, "guests")


@dataclass(frozen=True)
class _Party:
    """The cost of a party whose guests have got their mails."""

    invited: Spent
    mailed: Spent
    asked_s: Sequence[float]  # Durations of polls during the mailing.
    ended: Spent  # Cost of polls after it.

    def polls(self) -> dict[str, float]:
        figures = self.ended.an_item()
        slow_ms = {"slowest_ms": 1000 * max(self.asked_s), "median_ms": 1000 * median(self.asked_s)}
        return {
            **slow_ms,
            **{name: figures[name] for name in ("reads", "round_trips", "bytes", "ms")},
        }


def _party(bench: Bench, size: int) -> _Party:
    """Invite guests and mail them, while a browser polls the page."""
    party_id, import_id = secrets.token_hex(16), secrets.token_hex(16)
    clients, guests = bench.clients, made_up_guests(size).encode()

    def invite() -> None:
        with clients.context():
            parties.create_party(clients, party_id, DETAILS)
            imports.import_guests(clients, party_id, import_id, guests, "guests.csv")

    def tell() -> None:
        with clients.context():
            sending.send(clients, party_id)

    def ask() -> None:
        with _page(bench, party_id) as page:
            for _ in range(POLLS):
                page.ask()

    invited = spend(bench, "guests", size, invite)
    bench.relay.clear()
    with _page(bench, party_id) as page, page.asking():
        mailed = spend(bench, "mails", size, tell)
    with clients.context():
        run_id = parties.party_of(party_id).sends[-1]["run_id"]
        check("mails", progress(run_id).totals.done, size)
    check("mails", bench.relay.count(), size)
    return _Party(invited, mailed, page.asked_s, spend(bench, "polls", POLLS, ask))


@dataclass
class _Page:
    """A browser with a party's page."""

    connection: http.client.HTTPConnection
    path: str
    asked_s: list[float] = field(default_factory=list)

    def ask(self) -> None:
        """Get the live part of the page."""
        began = time.perf_counter()
        self.connection.request("GET", self.path)
        response = self.connection.getresponse()
        response.read()
        if response.status != 200:
            raise RuntimeError(f"{self.path} answered {response.status}")
        self.asked_s.append(time.perf_counter() - began)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Poll the live part during the block."""
        is_over = threading.Event()

        def look() -> None:
            while not is_over.wait(ASKS_AGAIN_S):
                self.ask()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


@contextlib.contextmanager
def _page(bench: Bench, party_id: str) -> Iterator[_Page]:
    connection = http.client.HTTPConnection("127.0.0.1", bench.port, timeout=60)
    with contextlib.closing(connection):
        yield _Page(connection, f"/invitations/{party_id}/live")
