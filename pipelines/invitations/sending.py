"""Sending: a party changes, and every guest gets one mail about that change.

A send is a continuation over the party's guests. It starts once, however often its button is
pressed: the run's id is made of the party, its change and its imports.

A send tells the guests of all imports that had ended when it was pressed. Pressed again it finds
that they know already, and tells only those who came since.

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

# Of the widest letters, each some 6 KB as JSON.
MAX_SENDS_KEPT = 50
SEND_ATTEMPTS = 5
# "Watch it" lasts so long, in so many pages: enough to see each of them.
WATCHED_S = 15.0
WATCHED_PAGES = 100
Pace = Literal["fast", "watch"]
LABELS = {"title": "What", "host": "Host", "place": "Where", "when": "When", "note": "Note"}


class NobodyInvitedError(Exception):
    """The party has no guests yet."""


@dataclass(frozen=True)
class SendResult:
    """What pressing send led to."""

    run_id: str
    is_new: bool
    guests: int


@dataclass(frozen=True)
class SendPlan:
    """What pressing send asks for, for a party as it was read."""

    args: TellArgs
    guests: int  # How many have to be told.
    last_run_id: str | None  # The last send of this change.

    @property
    def is_empty(self) -> bool:
        """Whether no guest has to be told."""
        return self.guests == 0

    @property
    def run_id(self) -> str:
        """The run's id: the same press asks for the same run."""
        args = self.args
        return hashed_name("tell", args.party_id, args.change, args.after_import, args.to_import)


def send(
    clients: Clients, party_id: str, *, page_size: int | None = None, pace: Pace = "fast"
) -> SendResult:
    """Tell every guest about the party's last change, once.

    Args:
        page_size: Guests per task; None leaves it to the job, or to the pace.
        pace: "fast" as fast as it goes; "watch" limits the rate, so that it lasts 15 s at least.

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
            # It may have been stored when Cloud Tasks did not answer.
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
    """Return what pressing send asks for now: the guests of the imports that ended since."""
    same_change = [old for old in party.sends if old["change"] == party.change]
    after = max([old["imports"] for old in same_change], default=0)
    to = _ended_imports(party)
    details = details_of(party)
    args = TellArgs(
        party_id=party.key.id(),
        change=party.change,
        after_import=after,
        to_import=to,
        news=_news(party, details),
        **asdict(details),
    )
    last_run_id = same_change[-1]["run_id"] if same_change else None
    return SendPlan(args, count_guests(party.imports[after:to]), last_run_id)


def _limits(guests: int, page_size: int | None, pace: Pace) -> dict[str, Any]:
    """Return the size of a run's pages, and how many mails a second it may send.

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
        if any(old["run_id"] == plan.run_id for old in party.sends):
            is_new = is_saved_here(party)
            return SendResult(plan.run_id, is_new, plan.guests if is_new else 0)
        if (party.change, party.sends) != (seen.change, seen.sends):
            return None  # Another send tells some of these guests, or the news is old.
        party.sends = [*map(_without_note, party.sends[-MAX_SENDS_KEPT:]), _record_of(plan, seen)]
        save_party(party, run)
        return SendResult(plan.run_id, True, plan.guests)

    return transact(begin)


def _record_of(plan: SendPlan, party: Party) -> dict[str, Any]:
    """Return what a party keeps of a send."""
    return {
        "run_id": plan.run_id,
        "change": plan.args.change,
        "imports": plan.args.to_import,
        "guests": plan.guests,
        "details": as_text(details_of(party)),
    }


def _without_note(send: dict[str, Any]) -> dict[str, Any]:
    """Return what a party keeps of an old send, without the long part: its row must stay small."""
    return {**send, "details": {**send["details"], "note": ""}}


def _ended_imports(party: Party) -> int:
    going_on = bool(party.imports) and is_running(party.imports[-1])
    return len(party.imports) - going_on


def count_guests(import_ids: list[str]) -> int:
    """Return how many guests some imports have added."""
    return sum(progress(import_id, dots=False).totals.done for import_id in import_ids)


def _news(party: Party, now: PartyDetails) -> list[str]:
    """Return what changed since the guests were told last, a line each."""
    if not party.sends:
        return []
    before, after = party.sends[-1]["details"], as_text(now)
    return [
        f"{label}: {before.get(field) or '-'} → {after[field] or '-'}"
        for field, label in LABELS.items()
        if before.get(field) != after[field]
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
                raise SkippedItemError("told by another send, or invited later")
            try:
                connection.send(message_for(args, guest, mailer.sender))
            except mail.RefusedError as error:
                raise RefusedItemError(f"{guest.address}: {error}") from error
            except mail.DeferredError as error:
                raise DeferredItemError(f"{guest.address}: {error}") from error

        yield tell
