"""A host of a party in tests: all that the pages can do, without pages."""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from models.invitations import Party, guests_of
from pipelines.invitations import imports, parties, sending
from pipelines.invitations.parties import PartyDetails
from pipelines.invitations.sending import SendResult
from rollforward.continuations.progress import ItemIssue, RunProgress, item_issues, progress
from rollforward.runtime.messages import Message
from rollforward.tasks.errors import NotAttemptedError, Unavailable
from tests.infra.world import World

one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)


DETAILS = PartyDetails("Garden party", "Brett", "Roof", datetime.datetime(2030, 5, 1, 19, 30))  # noqa: DTZ001


class Away:
    """Cloud Tasks that does not answer."""

    def create_many(self, messages: Sequence[Message]) -> list[bool]:
        raise Unavailable("away")

    def create_all(self, messages: Sequence[Message]) -> list[bool | Exception]:
        return [NotAttemptedError()] * len(messages)


@contextlib.contextmanager
def cloud_tasks_away(world: World) -> Iterator[None]:
    """Let Cloud Tasks not answer meanwhile, by the world's own clients."""
    clients = world.clients
    world.clients = replace(clients, tasks=Away())  # type: ignore[arg-type]
    try:
        yield
    finally:
        world.clients = clients


@dataclass
class Host:
    """A host of a party: all that the pages can do, without pages."""

    world: World
    party_id: str = "p1"

    def create(self, details: PartyDetails = DETAILS) -> bool:
        with self.world.context():
            return parties.create_party(self.world.clients, self.party_id, details)

    def change(self, **changes: Any) -> bool:
        with self.world.context():
            now = parties.details_of(self.party)
            return parties.change_party(self.party_id, replace(now, **changes))

    def start_import(self, content: str | bytes, import_id: str) -> bool:
        data = content.encode() if isinstance(content, str) else content
        with self.world.context():
            return imports.import_guests(
                self.world.clients, self.party_id, import_id, data, "guests.csv"
            )

    def invite(self, content: str | bytes, import_id: str = "i1") -> RunProgress:
        """Import a file to its end."""
        self.start_import(content, import_id)
        self.world.settle()
        return self.run(import_id)

    def press_send(self) -> SendResult:
        with self.world.context():
            return sending.send(self.world.clients, self.party_id)

    def send(self) -> RunProgress:
        """Send to the end."""
        sent = self.press_send()
        self.world.settle()
        return self.run(sent.run_id)

    @property
    def party(self) -> Party:
        return parties.party_of(self.party_id)

    def run(self, run_id: str) -> RunProgress:
        with self.world.context():
            return progress(run_id)

    def item_issues(self, run_id: str) -> list[ItemIssue]:
        with self.world.context():
            return item_issues(run_id)

    def guests(self) -> dict[str, str]:
        with self.world.context():
            return {guest.address: guest.name for guest in guests_of(self.party_id)}

    def mails(self) -> Counter[str]:
        """Return how many mails each address has got."""
        got = self.world.services.mail.messages()
        return Counter(address for mail in got for address in mail.recipients)

    def texts(self, address: str) -> list[str]:
        """Return an address's mails, oldest first."""
        got = self.world.services.mail.messages()
        return [mail.text for mail in reversed(got) if address in mail.recipients]


def people(*names: str) -> str:
    return "name,email\n" + "".join(f"{name.title()},{name}@example.com\n" for name in names)


def once(*names: str) -> Counter[str]:
    return Counter({f"{name}@example.com": 1 for name in names})
