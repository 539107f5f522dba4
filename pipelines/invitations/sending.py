"""Sending: a party changes, and every guest gets one mail about that change.

A send is a continuation over the party's guests. It starts once, however often its button is
pressed: the run's id is made of the party, its change and its imports.

A send reaches the guests of all imports that had ended when its button was pressed. A second press
skips these guests, and reaches only later ones.

Lost on failure: nothing. Sent twice: at most what one crash leaves without receipts (ten mails or
50 ms of them, see rollforward/continuations/pages/attempt.py); the page counts them.

Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Example fan-out".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from google.api_core import exceptions as rpc_errors

from models.invitations import Guest, Party, guest_prefix
from pipelines.invitations import mail
from pipelines.invitations.message import TellArgs, message_for
from pipelines.invitations.parties import (
    PartyDetails,
    details_of,
    is_running,
    is_saved_here,
    party_of,
    save_party,
)
from rollforward.continuations import (
    DeferredItemError,
    RefusedItemError,
    SkippedItemError,
    job,
    runs,
)
from rollforward.continuations.progress import progress
from rollforward.continuations.sources import EntitySource
from rollforward.datastore import transact
from rollforward.runtime import Clients
from rollforward.tasks import hashed_name

# Each takes up to some 6 KB as JSON, with the widest letters.
MAX_SENDS_KEPT = 50
SEND_ATTEMPTS = 5
# "Watch it" lasts this long, in this number of pages, so that each can be seen.
WATCHED_S = 15.0
WATCHED_PAGES = 100
Pace = Literal["fast", "watch"]
LABELS = {"title": "What", "host": "Host", "place": "Where", "when": "When", "note": "Note"}


class NobodyInvitedError(Exception):
    """The party has no guests yet."""


@dataclass(frozen=True)
class SendResult:
    """Result of a press of Send."""

    run_id: str
    is_new: bool
    guests: int


@dataclass(frozen=True)
class SendPlan:
    """Plan of a send, for a party as it was read."""

    args: TellArgs
    guests: int  # Number of guests to reach.
    last_run_id: str | None  # The last send of this change.

    @property
    def is_empty(self) -> bool:
        """Whether there is no guest to reach."""
        return self.guests == 0

    @property
    def run_id(self) -> str:
        """The run's id: the same press asks for the same run."""
        args = self.args
        return hashed_name("tell", args.party_id, args.change, args.after_import, args.to_import)


def send(
    clients: Clients, party_id: str, *, page_size: int | None = None, pace: Pace = "fast"
) -> SendResult:
    """Send every guest one mail about the party's last change.

    Args:
        page_size: Guests per task; None leaves it to the job, or to the pace.
        pace: "fast" as fast as possible; "watch" limits the rate, so that it lasts 15 s at least.

    Raises:
        NobodyInvitedError: no import has ended with a guest.
        google.api_core.exceptions.Aborted: other requests kept changing the party or sending.
    """
    for _ in range(SEND_ATTEMPTS):
        party = party_of(party_id)
        plan = _plan(party)
        if plan.is_empty:
            if plan.last_run_id is None:
                raise NobodyInvitedError(party_id)
            # The run may have been stored while Cloud Tasks was unavailable.
            runs.launch(clients, tell_guests, plan.last_run_id)
            return SendResult(plan.last_run_id, False, 0)
        limits = _limits(plan.guests, page_size, pace)
        if (result := _begin(clients, party, plan, limits)) is not None:
            runs.launch(clients, tell_guests, result.run_id)
            return result
    raise rpc_errors.Aborted(  # type: ignore[no-untyped-call]
        f"party {party_id} keeps changing"
    )


def _plan(party: Party) -> SendPlan:
    """Return the plan of a send now: the guests of the imports that ended since the last one."""
    same_change = [record for record in party.sends if record["change"] == party.change]
    sent_imports = max([record["imports"] for record in same_change], default=0)
    to = _ended_imports(party)
    details = details_of(party)
    args = TellArgs(
        party_id=party.key.id(),
        change=party.change,
        after_import=sent_imports,
        to_import=to,
        news=_news(party, details),
        **asdict(details),
    )
    last_run_id = same_change[-1]["run_id"] if same_change else None
    return SendPlan(args, count_guests(party.imports[sent_imports:to]), last_run_id)


def _limits(guests: int, page_size: int | None, pace: Pace) -> dict[str, Any]:
    """Return the size of a run's pages, and its limit of mails a second.

    >>> _limits(1000, None, "watch")
    {'page_size': 10, 'max_rate': 66.66666666666667}
    """
    if pace == "fast":
        return {"page_size": page_size}
    size = max(1, min(tell_guests.page_size, guests // WATCHED_PAGES))
    return {"page_size": page_size or size, "max_rate": guests / WATCHED_S}


def _begin(
    clients: Clients, seen: Party, plan: SendPlan, limits: dict[str, Any]
) -> SendResult | None:
    """Store a plan and its run; None: the party has changed since it was read."""
    run = runs.new_run(
        clients,
        tell_guests,
        plan.args,
        run_id=plan.run_id,
        expected=count_guests(seen.imports[: plan.args.to_import]),
        **limits,
    )

    def begin() -> SendResult | None:
        party = party_of(plan.args.party_id)
        if any(record["run_id"] == plan.run_id for record in party.sends):
            is_new = is_saved_here(party)
            return SendResult(plan.run_id, is_new, plan.guests if is_new else 0)
        if (party.change, party.sends) != (seen.change, seen.sends):
            return None  # Another send reaches some of these guests, or the news is old.
        party.sends = [*map(_without_note, party.sends[-MAX_SENDS_KEPT:]), _record_of(plan, seen)]
        save_party(party, run)
        return SendResult(plan.run_id, True, plan.guests)

    return transact(begin)


def _record_of(plan: SendPlan, party: Party) -> dict[str, Any]:
    """Return the stored record of a send."""
    return {
        "run_id": plan.run_id,
        "change": plan.args.change,
        "imports": plan.args.to_import,
        "guests": plan.guests,
        "details": as_text(details_of(party)),
    }


def _without_note(send: dict[str, Any]) -> dict[str, Any]:
    """Return the record of an old send without the long note: a party's row must stay small."""
    return {**send, "details": {**send["details"], "note": ""}}


def _ended_imports(party: Party) -> int:
    has_running = bool(party.imports) and is_running(party.imports[-1])
    return len(party.imports) - has_running


def count_guests(import_ids: list[str]) -> int:
    """Return the number of guests that some imports have added."""
    return sum(progress(import_id, dots=False).totals.done for import_id in import_ids)


def _news(party: Party, details: PartyDetails) -> list[str]:
    """Return the changes since the last send, a line each."""
    if not party.sends:
        return []
    old_texts, new_texts = party.sends[-1]["details"], as_text(details)
    return [
        f"{label}: {old_texts.get(field) or '-'} → {new_texts[field] or '-'}"
        for field, label in LABELS.items()
        if old_texts.get(field) != new_texts[field]
    ]


def as_text(details: PartyDetails) -> dict[str, str]:
    """Return details as a mail and a page show them."""
    return {**asdict(details), "when": f"{details.when:%Y-%m-%d %H:%M}"}


def _guests(args: TellArgs) -> EntitySource:
    return EntitySource(Guest, key_prefix=guest_prefix(args.party_id))


@job("tell-guests", queue="fan-out", source=_guests, effect="side_effect")
@contextlib.contextmanager
def tell_guests(clients: Clients, args: TellArgs) -> Iterator[Callable[[Guest], None]]:
    """Open one connection to the relay for a page of guests."""
    mailer = clients.service(mail.Mailer)
    with mailer.connect() as connection:

        def tell(guest: Guest) -> None:
            if not args.after_import < guest.import_number <= args.to_import:
                raise SkippedItemError("mailed by another send, or invited later")
            try:
                connection.send(message_for(args, guest, mailer.sender))
            except mail.RefusedError as error:
                raise RefusedItemError(f"{guest.address}: {error}") from error
            except mail.DeferredError as error:
                raise DeferredItemError(f"{guest.address}: {error}") from error

        yield tell
