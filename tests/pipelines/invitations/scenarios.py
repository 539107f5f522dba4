"""An import and a send, to be played under faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from google.cloud import ndb

from models.invitations import Guest, Party, guest_key, guests_of
from pipelines.invitations import imports, parties, sending
from rollforward.continuations.entities import FINISHED, ContinuationRun, run_key
from rollforward.continuations.progress import RunTotals, progress
from rollforward.runtime import Cost, naive_utc
from rollforward.testing.injection import REPLY_LOST
from tests.infra.world import World
from tests.pipelines.invitations.host import DETAILS


class ImportScenario:
    """Import a file of three guests and a bad row into a party of its own."""

    def __init__(self, world: World) -> None:
        self.world = world

    def content(self, tag: str) -> bytes:
        return f"Ann,ann@{tag}.example\nBob,bob@{tag}.example\nbad\nCid,cid@{tag}.example".encode()

    def begin(self, tag: str) -> None:
        clients = self.world.clients
        with self.world.plan.unwatched():
            parties.create_party(clients, tag, DETAILS)
        imports.import_guests(clients, tag, f"{tag}-i", self.content(tag), "guests.csv")

    def is_done(self, tag: str) -> bool:
        run = run_key(f"{tag}-i").get()
        return run is not None and run.state == FINISHED

    def check(self, tag: str, fault: str) -> None:
        now = progress(f"{tag}-i")
        assert (now.totals.done, now.totals.failed, now.totals.known) == (3, 1, 4), fault
        assert len(guests_of(tag).fetch()) == 3, fault
        assert parties.party_of(tag).imports == [f"{tag}-i"], fault


class SendScenario:
    """Press send for three guests that are there already."""

    leaves = ("-i: ",)  # Their import is a row without pages.

    def __init__(self, world: World) -> None:
        self.world = world
        self.ready: set[str] = set()

    def begin(self, tag: str) -> None:
        if tag not in self.ready:
            with self.world.plan.unwatched():
                self.invite(tag)
            self.ready.add(tag)
        sending.send(self.world.clients, tag)

    def invite(self, tag: str) -> None:
        """Store a party and an import of three guests that has ended."""
        now = naive_utc(self.world.clock.now())
        totals = RunTotals(3, 0, 0, 0, 0, 0, 1, Cost())
        done = ContinuationRun(
            key=run_key(f"{tag}-i"),
            job="import-guests",
            args="{}",
            state=FINISHED,
            spans=[["", ""]],
            page_size=250,
            started=now,
            ended=now,
            totals=asdict(totals),
        )
        guests = [
            Guest(
                key=guest_key(tag, f"{name}@{tag}.example"),
                name=name,
                address=f"{name}@{tag}.example",
                import_id=f"{tag}-i",
                import_number=1,
                line=line,
            )
            for line, name in enumerate(("ann", "bob", "cid"), 1)
        ]
        party = Party(id=tag, created=now, imports=[f"{tag}-i"], **asdict(DETAILS))
        ndb.put_multi([party, done, *guests])

    def is_done(self, tag: str) -> bool:
        sends = parties.party_of(tag).sends
        return len(sends) == 1 and progress(sends[0]["run_id"]).state == FINISHED

    def check(self, tag: str, fault: str) -> None:
        [sent] = parties.party_of(tag).sends
        now = progress(sent["run_id"])
        assert (now.totals.done, now.totals.failed, now.totals.known) == (3, 0, 3), fault
        mails = self.world.services.mail.store.list(text=f"@{tag}.example", limit=None)
        ids = Counter(mail.message_id for mail in mails)
        assert len(ids) == 3, fault
        assert sum(ids.values()) - 3 <= now.totals.in_doubt, fault
        if REPLY_LOST not in fault and "crash" not in fault:
            assert set(ids.values()) == {1}, fault
