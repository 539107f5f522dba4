"""The form of a party: its default values, and the party's details from its fields."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from models.invitations import Party
from pipelines.invitations.parties import PartyDetails
from pipelines.invitations.sending import LABELS
from pipelines.text import can_be_shown

NAMES = ("Ada", "Grace", "佐藤 花子", "Linus", "Barbara", "鈴木 一郎", "Edsger", "Frances")
# What the form asks for, in the words of its labels.
ASKED_FOR = {
    "title": "a title: what the party is",
    "host": "a host",
    "place": "a place: where the party is",
    "when": "a date and a time, like 2030-05-01 19:30",
    "note": "a note",
}
MAX_CHARS = {"title": 120, "host": 120, "place": 200, "note": 2000}


def sample_form(now: datetime.datetime) -> dict[str, str]:
    """Return the default values for the form of a new party."""
    evening = (now + datetime.timedelta(days=14)).replace(hour=19, minute=30)
    return {
        "title": "Garden party",
        "host": "Brett",
        "place": "Roof terrace, 5th floor",
        "when": f"{evening:%Y-%m-%dT%H:%M}",
        "note": "",
    }


def made_up_guests(count: int) -> str:
    """Return a list of `count` guests, in the form of a file."""
    rows = (f"{NAMES[i % len(NAMES)]} {i},guest{i}@example.com" for i in range(1, count + 1))
    return "name,email\n" + "\n".join(rows) + "\n"


def form_of(party: Party) -> dict[str, str]:
    """Return the values of a party for its form."""
    return {
        "title": party.title,
        "host": party.host,
        "place": party.place,
        "when": f"{party.when:%Y-%m-%dT%H:%M}",
        "note": party.note,
    }


def read_details(
    typed: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str], PartyDetails | None]:
    """Return the fields, their errors, and the details if there are no errors."""
    form = {name: typed.get(name, "").strip() for name in LABELS}
    form["note"] = form["note"].replace("\r\n", "\n")
    errors = {name: f"Enter {ASKED_FOR[name]}." for name in LABELS if not form[name]}
    errors.pop("note", None)
    for name, limit in MAX_CHARS.items():
        if len(form[name]) > limit:
            errors[name] = f"{LABELS[name]} is too long: shorten it to {limit} characters."
        elif not can_be_shown(form[name].replace("\n", " ") if name == "note" else form[name]):
            errors[name] = f"{LABELS[name]} has characters that cannot be shown: remove them."
    when = _read_when(form["when"])
    if when is None:
        errors["when"] = f"Enter {ASKED_FOR['when']}."
    if errors or when is None:
        return form, errors, None
    return form, {}, PartyDetails(form["title"], form["host"], form["place"], when, form["note"])


def _read_when(text: str) -> datetime.datetime | None:
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    is_sound = when.tzinfo is None and 1900 < when.year < 3000
    return when.replace(second=0, microsecond=0) if is_sound else None
