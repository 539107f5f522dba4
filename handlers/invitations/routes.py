"""Pages of invitations: parties, their guests, and the mails going out."""

from __future__ import annotations

import re
import time
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue

from handlers.invitations.forms import form_of, made_up_guests, read_details, sample_form
from handlers.invitations.pace import note_rate, watched_length
from handlers.invitations.stage import as_data, canvas_of, party_stage, time_left, waiting_canvas
from handlers.settings import demo_settings
from handlers.shared.charts import page_bars
from handlers.shared.faults import strike_once_each
from handlers.shared.forms import (
    ID_PATTERN,
    MAX_PASTED_CHARS,
    about_file,
    id_in_form,
    uploaded_list,
)
from handlers.shared.held_boxes import MAX_HELD_CHARS, HeldBoxes, held_boxes
from handlers.shared.live import live_part
from handlers.shared.quotas import let_in_guests, let_in_mails
from handlers.shared.source_excerpts import Excerpt, excerpt
from models.invitations import Guest, GuestImport, Party, newest_parties
from pipelines.invitations import imports, parties, sending
from pipelines.invitations.imports import ForeignImportError, ImportGoingOnError
from pipelines.invitations.parties import UnknownPartyError
from pipelines.invitations.send_progress import SendProgress, latest_send, lineage, run_ids
from pipelines.invitations.sending import NobodyInvitedError, Pace, tell_guests
from rollforward import continuations
from rollforward.continuations.csv_source import MAX_BYTES, BadFileError
from rollforward.continuations.entities import CANCELLED, RUNNING
from rollforward.continuations.errors import NotEndedError, PagesGoneError
from rollforward.continuations.progress import ItemIssue, RunProgress, item_issues, progress
from rollforward.flask.context import clients, registry
from rollforward.flask.guards.fields import limits
from rollforward.flask.live import run_topic

bp = Blueprint("invitations", __name__, url_prefix="/invitations")

PARTIES_SHOWN = 50
GUESTS_SHOWN = 20
ISSUES_SHOWN = 200
TABS = ("how", "code", "guests", "table", "told")
# A text that is somewhat too long comes back with its form.
DETAILS_LIMITS = {"title": 1_000, "host": 1_000, "place": 1_000, "note": 10_000}
EXAMPLE = "佐藤 花子, hanako@example.com"
PACES = ("watch", "fast")
SAMPLE_SIZES = (10, 100, 1000, 10_000)


@bp.get("")
def all_parties() -> ResponseReturnValue:
    """List the parties, and offer to make one."""
    return _parties_page(sample_form(clients().clock.now()), {}, 200)


def _parties_page(form: dict[str, str], errors: dict[str, str], status: int) -> ResponseReturnValue:
    html = render_template(
        "invitations/parties.html",
        parties=newest_parties().fetch(PARTIES_SHOWN + 1),
        parties_shown=PARTIES_SHOWN,
        form=form,
        errors=errors,
        new_id=clients().new_id(),
    )
    return html, status


@bp.post("")
@limits(**DETAILS_LIMITS)
def create() -> ResponseReturnValue:
    """Create a party, once for each form."""
    party_id = id_in_form()
    form, errors, details = read_details(request.form)
    if details is None:
        return _parties_page(form, errors, 400)
    parties.create_party(clients(), party_id, details)
    return redirect(url_for(".party", party_id=party_id), 303)


@bp.get("/<party_id>")
def party(party_id: str) -> ResponseReturnValue:
    """Show a party: its details, its guests, its mails."""
    party = _party_or_404(party_id)
    return _party_page(party, form_of(party), {}, 200)


@bp.get("/<party_id>/live")
@limits(has=MAX_HELD_CHARS)
def live(party_id: str) -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    party = _party_or_404(party_id)
    return live_part("invitations/_live.html", **_live(party, held_boxes()))


@bp.post("/<party_id>/details")
@limits(**DETAILS_LIMITS)
def change(party_id: str) -> ResponseReturnValue:
    """Save new details."""
    party = _party_or_404(party_id)
    form, errors, details = read_details(request.form)
    if details is None:
        return _party_page(party, form, errors, 400)
    if parties.change_party(party_id, details):
        flash("Saved. Press Send to mail the guests.")
    else:
        flash("Nothing changed.")
    return _to_party(party_id)


@bp.post("/<party_id>/guests")
@limits(pasted=MAX_PASTED_CHARS)
def upload(party_id: str) -> ResponseReturnValue:
    """Take a file of guests, or text pasted into the form, and start to read it."""
    return _import(_party_or_404(party_id), *uploaded_list())


@bp.post("/<party_id>/sample-guests")
def sample_guests(party_id: str) -> ResponseReturnValue:
    """Invite made-up guests, through the same import as a file."""
    party = _party_or_404(party_id)
    count = request.form.get("count", 0, type=int)
    if count not in SAMPLE_SIZES:
        abort(400, f"count must be one of {', '.join(map(str, SAMPLE_SIZES))}.")
    return _import(party, made_up_guests(count).encode(), f"{count} made-up guests.csv")


def _import(party: Party, content: bytes, name: str) -> ResponseReturnValue:
    party_id, import_id = party.key.id(), id_in_form()
    let_in_guests(import_id, content.count(b"\n") + 1)
    try:
        imports.import_guests(clients(), party_id, import_id, content, name)
    except BadFileError as error:
        message = about_file(name, str(error), EXAMPLE)
        return _party_page(party, form_of(party), {"guests": message}, 400)
    except ImportGoingOnError:
        message = "another file of this party is being read; try again when it has ended"
        return _party_page(party, form_of(party), {"guests": message}, 409)
    except ForeignImportError:
        abort(400, "This form belongs to another party. Reload the page and try again.")
    return _to_party(party_id)


@bp.post("/<party_id>/send")
def send(party_id: str) -> ResponseReturnValue:
    """Start mailing the guests, in the background."""
    started = time.perf_counter()
    party, pace = _party_or_404(party_id), _pace()
    if guests := sending.count_guests(party.imports):
        let_in_mails(party_id, party.change, guests)
    strike_once_each(request.path)
    try:
        result = sending.send(clients(), party_id, page_size=demo_settings().page_size, pace=pace)
    except NobodyInvitedError:
        flash("No guest is invited yet: add guests first.")
        return _to_party(party_id)
    if result.is_new:
        session["responded"] = [result.run_id, round(time.perf_counter() - started, 4)]
    else:
        flash(f"0 new mails: {_why_no_mail(result.run_id)}")
    return _to_party(party_id)


def _pace() -> Pace:
    """Return the pace of a form; one without a choice sends as fast as possible."""
    pace = request.form.get("pace", "fast")
    if pace not in PACES:
        abort(400, f"pace must be one of {', '.join(PACES)}.")
    return pace  # type: ignore[return-value]


def _why_no_mail(run_id: str) -> str:
    """Say why pressing send sent no mail."""
    latest = progress(lineage(run_id)[-1], dots=False)
    if latest.state == RUNNING:
        return "this change is being sent already."
    if latest.state == CANCELLED:
        return "the send of this change was cancelled. Resume it below."
    if latest.totals.failed:
        return "the failed mails can be sent again below."
    return "all guests on the list were notified of this change."


@bp.post("/<party_id>/sends/<run_id>/<any(cancel, resume, retry):verb>")
def control(party_id: str, run_id: str, verb: str) -> ResponseReturnValue:
    """Cancel a run, resume it, or retry its failed items."""
    party = _party_or_404(party_id)
    if run_id not in run_ids(party):
        abort(404)
    try:
        if verb == "cancel":
            continuations.cancel(run_id)
        elif verb == "resume":
            continuations.resume(clients(), registry().jobs, run_id)
        else:
            continuations.retry_failed(clients(), registry().jobs, run_id)
    except NotEndedError:
        flash("Not finished yet: failed mails can be sent again afterwards.")
    except PagesGoneError:
        flash("It finished over 30 days ago: its failed mails are no longer listed.")
    return _to_party(party_id)


# What the pages are made of


def _party_page(
    party: Party, form: dict[str, str], errors: dict[str, str], status: int
) -> ResponseReturnValue:
    tab = _tab()
    # Only the tab that is open reads the list: the page costs the same however many guests it has.
    guests, next_token = _guests(party) if tab == "guests" else ([], None)
    shown = _live(party)
    html = render_template(
        "invitations/party.html",
        form=form,
        errors=errors,
        tab=tab,
        guests=guests,
        more_guests=next_token,
        excerpts=_code() if tab == "code" else [],
        page_rows=page_bars(shown["canvas"]) if tab == "table" else [],
        still=page_bars(shown["canvas"]),
        sample_sizes=SAMPLE_SIZES,
        max_mib=MAX_BYTES // 2**20,
        **shown,
    )
    return html, status


def _tab() -> str:
    """Return the tab that is open; a place in the list of guests is in theirs."""
    if request.method != "GET":
        return TABS[0]
    tab = request.args.get("tab", "guests" if "after" in request.args else TABS[0])
    return tab if tab in TABS else abort(404)


def _code() -> list[Excerpt]:
    """Return the lines that matter, as they run."""
    return [
        excerpt(
            "pipelines.invitations.sending",
            "tell_guests",
            "The task: a mail per guest, and its receipt",
        ),
    ]


def _guests(party: Party) -> tuple[list[Guest], str | None]:
    token = request.args.get("after", "")
    prefix = f"{party.key.id()}:"
    # A place is a hash in hex under this party's prefix; anything else is not ours.
    if token and not re.fullmatch(r"[0-9a-f]{24}", token):
        abort(400, "This page of guests does not exist.")
    guests, next_token = parties.guests_page(
        party.key.id(), after=prefix + token if token else "", size=GUESTS_SHOWN
    )
    return guests, next_token.removeprefix(prefix) if next_token else None


def _live(party: Party, held: HeldBoxes | None = None) -> dict[str, Any]:
    files, now = _imports(party), clients().clock.now()
    send = latest_send(clients(), party)
    guest_count = sum(run.totals.done for _, run, _ in files)
    note_rate(clients(), send, now)
    page_size = demo_settings().page_size or tell_guests.page_size
    stage = party_stage(party, send, now)
    canvas = (
        canvas_of(send.latest, stage.deliveries, held)
        if send is not None and send.latest.started is not None
        else waiting_canvas(guest_count or 1000, page_size)
    )
    is_moving = any(run.state == RUNNING for _, run, _ in files[:1]) or (
        send is not None and (send.latest.state == RUNNING or send.latest.is_partly_shown)
    )
    return {
        "party": party,
        "party_id": party.key.id(),
        "imports": files,
        "guest_count": guest_count,
        "new_id": clients().new_id(),
        "send": send,
        "stage": stage,
        "canvas": canvas,
        "picture": as_data(canvas),
        "left_s": time_left(send.latest, stage) if send else None,
        "watched": watched_length(clients(), guest_count),
        "sends_then": bool(files) and imports.sends_then(files[0][0].key.id()),
        "responded_s": _responded_s(party),
        "send_issues": _issues(send.latest) if send else [],
        "is_moving": is_moving,
        "topics": _topics(party, send),
    }


def party_topic(party_id: str) -> str:
    """Return the topic of the forms of a party's page."""
    return f"party:{party_id}"


def _topics(party: Party, send: SendProgress | None) -> list[str]:
    """Return what a party's page watches: its forms, the runs that it shows, and faults."""
    shown = [*party.imports[-1:], *([send.latest.run_id] if send else [])]
    return [party_topic(party.key.id()), *map(run_topic, shown), "stages"]


def _responded_s(party: Party) -> float | None:
    """Return how long this visitor's press of send took; None: the last send is not theirs."""
    run_id, took_s = session.get("responded", (None, None))
    return took_s if party.sends and run_id == party.sends[-1]["run_id"] else None


def _imports(party: Party) -> list[tuple[GuestImport, RunProgress, list[ItemIssue]]]:
    """Return the party's imports, newest first, and the newest one's issues."""
    now = clients().clock.now()
    listed = []
    for place, import_id in enumerate(reversed(party.imports)):
        run = progress(import_id, now=now, dots=False, clients=clients())
        rows = _issues(run) if place == 0 else []
        listed.append((GuestImport.get_by_id(import_id), run, rows))
    return listed


def _issues(run: RunProgress) -> list[ItemIssue]:
    """Return refused and retried mails; reads pages only if there are some, and none were read."""
    if not run.totals.failed + run.totals.retrying:
        return []
    issues = (
        run.issues
        if run.pages
        else item_issues(run.run_id, limit=run.totals.known, clients=clients())
    )
    return [issue for issue in issues if issue.outcome != "skipped"][:ISSUES_SHOWN]


def _party_or_404(party_id: str) -> Party:
    if not ID_PATTERN.fullmatch(party_id):
        abort(404)
    try:
        return parties.party_of(party_id)
    except UnknownPartyError:
        abort(404)


def _to_party(party_id: str) -> ResponseReturnValue:
    return redirect(url_for(".party", party_id=party_id, _anchor="now"), 303)
