"""Pages of invitations: parties, their guests, and the mails going out."""

from __future__ import annotations

import datetime
import re
import time
from dataclasses import dataclass, field
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue

from demos.invitations import parties as invitations
from demos.invitations.parties import (
    Details,
    ForeignImportError,
    ImportGoingOnError,
    NobodyInvitedError,
    UnknownPartyError,
)
from demos.text import can_be_shown
from handlers.endpoints.context import clients, registry
from handlers.forms import ID_PATTERN, id_in_form
from handlers.pages.faults import active_switches
from handlers.settings import demo_settings
from models.continuations import CANCELLED, RUNNING
from models.demos.invitations import Guest, GuestImport, Party, newest_parties
from pipelines import continuations
from pipelines.continuations.csv_source import MAX_BYTES, BadFileError
from pipelines.continuations.errors import NotEndedError, PagesGoneError, UnknownRunError
from pipelines.continuations.progress import ItemIssue, Progress, item_issues, progress, run_of
from pipelines.runtime import Cost

bp = Blueprint("invitations", __name__, url_prefix="/invitations")

PARTIES_SHOWN = 50
GUESTS_SHOWN = 20
MISHAPS_SHOWN = 200
LONGEST = {"title": 120, "host": 120, "place": 200, "note": 2000}
WORDS = {"title": "What", "host": "Host", "place": "Where", "when": "When", "note": "Note"}
SAMPLE_SIZES = (10, 100, 1000, 10_000)


@bp.get("")
def parties() -> ResponseReturnValue:
    """List the parties, and offer to make one."""
    return _parties_page(_sample(), {}, 200)


def _parties_page(form: dict[str, str], errors: dict[str, str], status: int) -> ResponseReturnValue:
    page = render_template(
        "invitations/parties.html",
        parties=newest_parties().fetch(PARTIES_SHOWN),
        form=form,
        errors=errors,
        new_id=clients().new_id(),
    )
    return page, status


def _sample() -> dict[str, str]:
    evening = (clients().clock.now() + datetime.timedelta(days=14)).replace(hour=19, minute=30)
    return {
        "title": "Garden party",
        "host": "Brett",
        "place": "Roof terrace, 5th floor",
        "when": f"{evening:%Y-%m-%dT%H:%M}",
        "note": "",
    }


@bp.post("")
def create() -> ResponseReturnValue:
    """Create a party, once for each form."""
    party_id = id_in_form()
    form, errors, details = _read_details()
    if details is None:
        return _parties_page(form, errors, 400)
    invitations.create_party(clients(), party_id, details)
    return redirect(url_for(".party", party_id=party_id), 303)


@bp.get("/<party_id>")
def party(party_id: str) -> ResponseReturnValue:
    """Show a party: its details, its guests, its mails."""
    found = _party_or_404(party_id)
    return _party_page(found, _form_of(found), {}, 200)


@bp.get("/<party_id>/stage")
def stage(party_id: str) -> ResponseReturnValue:
    """Return the part of the page that moves, for a script to put in place."""
    found = _party_or_404(party_id)
    return render_template("invitations/_stage.html", **_stage(found))


@bp.post("/<party_id>/details")
def change(party_id: str) -> ResponseReturnValue:
    """Save new details."""
    found = _party_or_404(party_id)
    form, errors, details = _read_details()
    if details is None:
        return _party_page(found, form, errors, 400)
    if invitations.change_party(party_id, details):
        flash("Saved. Press send to tell the guests.")
    else:
        flash("Nothing was different.")
    return _to_party(party_id)


@bp.post("/<party_id>/guests")
def upload(party_id: str) -> ResponseReturnValue:
    """Take a file of guests, or text pasted into the form, and start to read it."""
    found = _party_or_404(party_id)
    content, name = _uploaded()
    try:
        invitations.import_guests(clients(), party_id, id_in_form(), content, name)
    except BadFileError as error:
        return _party_page(found, _form_of(found), {"guests": str(error)}, 400)
    except ImportGoingOnError:
        words = "another file of this party is still being read; try again when it is done"
        return _party_page(found, _form_of(found), {"guests": words}, 409)
    except ForeignImportError:
        abort(400, "This form belongs to another party. Reload the page and try again.")
    return _to_party(party_id)


@bp.post("/<party_id>/sample-guests")
def sample_guests(party_id: str) -> ResponseReturnValue:
    """Invite made-up guests, through the same import as a file."""
    found = _party_or_404(party_id)
    count = request.form.get("count", 0, type=int)
    if count not in SAMPLE_SIZES:
        abort(400, f"The count must be one of {', '.join(map(str, SAMPLE_SIZES))}.")
    content = _made_up(count).encode()
    try:
        invitations.import_guests(
            clients(), party_id, id_in_form(), content, f"{count} made-up guests.csv"
        )
    except ImportGoingOnError:
        words = "another file of this party is still being read; try again when it is done"
        return _party_page(found, _form_of(found), {"guests": words}, 409)
    except ForeignImportError:
        abort(400, "This form belongs to another party. Reload the page and try again.")
    return _to_party(party_id)


def _made_up(count: int) -> str:
    names = ("Ada", "Grace", "佐藤 花子", "Linus", "Barbara", "鈴木 一郎", "Edsger", "Frances")
    rows = (f"{names[i % len(names)]} {i},guest{i}@example.com" for i in range(1, count + 1))
    return "name,email\n" + "\n".join(rows) + "\n"


@bp.post("/<party_id>/send")
def send(party_id: str) -> ResponseReturnValue:
    """Start telling the guests; the mails go out after the response."""
    started = time.perf_counter()
    _party_or_404(party_id)
    try:
        sent = invitations.send(clients(), party_id, page_size=demo_settings().page_size)
    except NobodyInvitedError:
        flash("Nobody is invited yet: add guests first.")
        return _to_party(party_id)
    if sent.is_new:
        session["answered"] = [sent.run_id, round(time.perf_counter() - started, 4)]
    else:
        flash(f"0 new mails: {_why_nobody(sent.run_id)}")
    return _to_party(party_id)


def _why_nobody(run_id: str) -> str:
    """Say why pressing send told nobody."""
    last = progress(_lineage(run_id)[-1], dots=False)
    if last.state == RUNNING:
        return "this change is being sent already."
    if last.state == CANCELLED:
        return "the send of this change was cancelled. Resume it below."
    if last.totals.failed:
        return "all others know; the failed ones can be sent again below."
    return "everybody on the list knows about this change already."


@bp.post("/<party_id>/sends/<run_id>/<any(cancel, resume, retry):verb>")
def steer(party_id: str, run_id: str, verb: str) -> ResponseReturnValue:
    """Cancel a run, go on with it, or run its failed items again."""
    found = _party_or_404(party_id)
    if run_id not in _lineage_ids(found):
        abort(404)
    try:
        if verb == "cancel":
            continuations.cancel(run_id)
        elif verb == "resume":
            continuations.resume(clients(), registry().jobs, run_id)
        else:
            continuations.retry_failed(clients(), registry().jobs, run_id)
    except NotEndedError:
        flash("It has not finished: failed mails can be sent again when it has.")
    except PagesGoneError:
        flash("It finished over 30 days ago: which mails failed is not known any more.")
    return _to_party(party_id)


# What the pages are made of


@dataclass(frozen=True)
class Send:
    """A send as the page shows it: the press, and the retries that followed."""

    change: int
    guests: int
    answered_s: float | None
    runs: list[Progress] = field(default_factory=list)

    @property
    def latest(self) -> Progress:
        return self.runs[-1]

    @property
    def sent(self) -> int:
        return sum(run.totals.done for run in self.runs)

    @property
    def in_doubt(self) -> int:
        return sum(run.totals.in_doubt for run in self.runs)

    @property
    def counts(self) -> dict[str, int]:
        """Guests by state: what one run left over is in the next one, so the last one tells."""
        latest = self.latest
        return {
            "done": self.sent,
            "waiting": latest.waiting,
            "retrying": latest.totals.retrying,
            "failed": latest.totals.failed,
            "skipped": sum(run.totals.skipped for run in self.runs),
        }

    @property
    def cost(self) -> Cost:
        return sum((run.totals.cost for run in self.runs), Cost())

    @property
    def elapsed_s(self) -> float:
        return sum(run.elapsed_s for run in self.runs)


def _party_page(
    party: Party, form: dict[str, str], errors: dict[str, str], status: int
) -> ResponseReturnValue:
    guests, more = _guests(party)
    page = render_template(
        "invitations/party.html",
        form=form,
        errors=errors,
        new_id=clients().new_id(),
        guests=guests,
        more_guests=more,
        sample_sizes=SAMPLE_SIZES,
        most_mib=MAX_BYTES // 2**20,
        switches=active_switches(),
        **_stage(party),
    )
    return page, status


def _guests(party: Party) -> tuple[list[Guest], str | None]:
    after = request.args.get("after", "")
    prefix = f"{party.key.id()}:"
    # A place is a hash in hex under this party's prefix; anything else is not ours.
    if after and not re.fullmatch(r"[0-9a-f]{24}", after):
        abort(400, "This page of guests does not exist.")
    guests, more = invitations.guests_page(
        party.key.id(), after=prefix + after if after else "", size=GUESTS_SHOWN
    )
    return guests, more.removeprefix(prefix) if more else None


def _stage(party: Party) -> dict[str, Any]:
    imports = _imports(party)
    send = _latest_send(party)
    is_moving = any(run.state == RUNNING for _, run, _ in imports[:1]) or (
        send is not None and send.latest.state == RUNNING
    )
    return {
        "party": party,
        "party_id": party.key.id(),
        "imports": imports,
        "guest_count": sum(run.totals.done for _, run, _ in imports),
        "send": send,
        "send_mishaps": _mishaps(send.latest) if send else [],
        "is_moving": is_moving,
        "page_size": demo_settings().page_size or invitations.TELL.page_size,
    }


def _imports(party: Party) -> list[tuple[GuestImport, Progress, list[ItemIssue]]]:
    """Return the party's imports, newest first, and what was wrong in the newest."""
    now = clients().clock.now()
    listed = []
    for place, import_id in enumerate(reversed(party.imports)):
        run = progress(import_id, now=now, dots=False)
        rows = _mishaps(run) if place == 0 else []
        listed.append((GuestImport.get_by_id(import_id), run, rows))
    return listed


def _mishaps(run: Progress) -> list[ItemIssue]:
    """Return what was refused or is to come again; reads pages only when there is some."""
    if not run.totals.failed + run.totals.retrying:
        return []
    found = item_issues(run.run_id, limit=run.totals.known)
    return [mishap for mishap in found if mishap.outcome != "skipped"][:MISHAPS_SHOWN]


def _latest_send(party: Party) -> Send | None:
    if not party.sends:
        return None
    last = party.sends[-1]
    now = clients().clock.now()
    runs = [progress(run_id, now=now) for run_id in _lineage(last["run_id"])]
    answered_run, answered_s = session.get("answered", (None, None))
    is_ours = answered_run == last["run_id"]
    return Send(last["change"], last["guests"], answered_s if is_ours else None, runs)


def _lineage(run_id: str) -> list[str]:
    """Return a run and the runs that tried its failed items again, oldest first."""
    ids = [run_id]
    while child := run_of(ids[-1]).retried_by:
        ids.append(child)
    return ids


def _lineage_ids(party: Party) -> set[str]:
    ids: set[str] = set()
    try:
        for sent in party.sends:
            ids.update(_lineage(sent["run_id"]))
    except UnknownRunError:
        return ids
    return ids


def _party_or_404(party_id: str) -> Party:
    if not ID_PATTERN.fullmatch(party_id):
        abort(404)
    try:
        return invitations.party_of(party_id)
    except UnknownPartyError:
        abort(404)


def _to_party(party_id: str) -> ResponseReturnValue:
    return redirect(url_for(".party", party_id=party_id, _anchor="now"), 303)


# What forms hold


def _read_details() -> tuple[dict[str, str], dict[str, str], Details | None]:
    """Return what was typed, what is wrong with it, and the details if nothing is."""
    form = {name: request.form.get(name, "").strip() for name in WORDS}
    form["note"] = form["note"].replace("\r\n", "\n")
    errors = {name: f"{WORDS[name]} is missing." for name in WORDS if not form[name]}
    errors.pop("note", None)
    for name, longest in LONGEST.items():
        if len(form[name]) > longest:
            errors[name] = f"{WORDS[name]} is longer than {longest} characters."
        elif not can_be_shown(form[name].replace("\n", " ") if name == "note" else form[name]):
            errors[name] = f"{WORDS[name]} has characters that cannot be shown."
    when = _read_when(form["when"])
    if when is None:
        errors["when"] = "When must be a date and a time, like 2030-05-01 19:30."
    if errors or when is None:
        return form, errors, None
    return form, {}, Details(form["title"], form["host"], form["place"], when, form["note"])


def _read_when(text: str) -> datetime.datetime | None:
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    is_sound = when.tzinfo is None and 1900 < when.year < 3000
    return when.replace(second=0, microsecond=0) if is_sound else None


def _form_of(party: Party) -> dict[str, str]:
    return {
        "title": party.title,
        "host": party.host,
        "place": party.place,
        "when": f"{party.when:%Y-%m-%dT%H:%M}",
        "note": party.note,
    }


def _uploaded() -> tuple[bytes, str]:
    file = request.files.get("file")
    if file is not None and file.filename:
        return file.read(MAX_BYTES + 1), file.filename
    return request.form.get("pasted", "").encode(), "pasted text"
