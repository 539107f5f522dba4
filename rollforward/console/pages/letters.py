"""Dead letters of a pipeline or a pull queue: a list, one with its body, and changes to them."""

from __future__ import annotations

from typing import Any

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api import changes
from rollforward.console.api.changes import (
    NO_LETTER,
    NO_LETTERS,
    ChangeRefusedError,
    letter_verb,
)
from rollforward.console.api.queries import PAGE_ROWS, time_range_of
from rollforward.console.api.rows import letter_row
from rollforward.console.pages.frame import Routes, go_to, page, render, with_query
from rollforward.flask.context import clients, registry
from rollforward.flask.guards.fields import limits
from rollforward.look import words
from rollforward.look.lists import ListChoice
from rollforward.runtime.clock import TimeRange
from rollforward.tasks.runs import (
    Letter,
    LetterPage,
    LetterQuery,
    UnknownLetterError,
    UnknownRunError,
)

MAX_CURSOR_CHARS = 1_100
SHOWN = 5
PREVIEW_CHARS = 120
VERB_WORDS = {"replay": "Replay", "delete": "Delete"}


@page
@limits(cursor=MAX_CURSOR_CHARS)
def letters(pattern: str, part: str) -> ResponseReturnValue:
    """Show the dead letters of a part."""
    chosen, cursor = ListChoice.of(request.args), request.args.get("cursor", "")
    listed = _page(pattern, part, chosen, cursor)
    first = f"/letters/{pattern}/{part}"
    older = ""
    if listed.next_cursor:
        older = with_query(first, **chosen.fields, cursor=listed.next_cursor)
    return render(
        "letters.html",
        pattern=pattern,
        part=part,
        rows=[_to_values(letter) for letter in listed.letters],
        chosen=chosen,
        older=older,
        is_first=not cursor,
        first=with_query(first, **chosen.fields),
        confirm={verb: with_query(f"{first}/all/{verb}", **chosen.fields) for verb in VERB_WORDS},
    )


@page
def letter(pattern: str, part: str, letter_id: str) -> ResponseReturnValue:
    """Show one dead letter with its error and its body."""
    try:
        shown = registry().letter(clients(), pattern, part, letter_id)
    except UnknownRunError:
        raise ChangeRefusedError(404, NO_LETTERS) from None
    except UnknownLetterError:
        raise ChangeRefusedError(404, NO_LETTER) from None
    body = words.body(shown.body.encode(errors="replace"))
    return render("letter.html", pattern=pattern, part=part, letter=_to_values(shown), body=body)


@page
@limits(id=1_000)
def change_letter() -> ResponseReturnValue:
    """Replay or delete one dead letter."""
    names = ("pattern", "part", "id", "verb")
    pattern, part, letter_id, verb = (request.form.get(name, "") for name in names)
    result = changes.change_letter(pattern, part, letter_id, verb)
    return go_to(f"/letters/{pattern}/{part}", f"letter-{result}")


@page
@limits(id=1_000)
def change_letters() -> ResponseReturnValue:
    """Start a run that changes the dead letters that were selected, or all of a time."""
    form = request.form
    pattern, part, verb, key = (form.get(name, "") for name in ("pattern", "part", "verb", "key"))
    # A form of a time has no `all`: code from before there were times would take all.
    takes_all = bool(form.get("all") or form.get("of_time"))
    ids, died = form.getlist("id"), time_range_of(form)
    if takes_all == bool(ids) or (ids and died):
        raise ChangeRefusedError(400, "Select at least one dead letter, or those of a time.")
    run_id = changes.change_letters(pattern, part, verb, ids, key or None, died=died)
    return go_to(f"/runs/continuations/{run_id}", "letters")


@page
def confirm_letters(pattern: str, part: str, verb: str) -> ResponseReturnValue:
    """Count the dead letters that a change of all would take, and ask."""
    letter_verb(verb)
    chosen = ListChoice.of(request.args)
    listed = _page(pattern, part, chosen)
    started = clients().clock.now()
    since, until = chosen.bounds(started)
    # Letters that are new while a person reads are left alone.
    until = min(started, until or started)
    return render(
        "letters_confirm.html",
        pattern=pattern,
        part=part,
        verb=verb,
        word=VERB_WORDS[verb],
        count=len(listed.letters),
        is_cut=bool(listed.next_cursor),
        rows=[_to_values(letter) for letter in listed.letters[:SHOWN]],
        chosen=chosen,
        since=since.isoformat() if since else "",
        until=until.isoformat(),
        key=clients().new_id(),
        list_url=with_query(f"/letters/{pattern}/{part}", **chosen.fields),
    )


def _page(pattern: str, part: str, chosen: ListChoice, cursor: str = "") -> LetterPage:
    query = LetterQuery(cursor, PAGE_ROWS, TimeRange(*chosen.bounds(clients().clock.now())))
    try:
        return registry().letters(clients(), pattern, part, query)
    except UnknownRunError:
        raise ChangeRefusedError(404, NO_LETTERS) from None


def _to_values(letter: Letter) -> dict[str, Any]:
    return {
        **letter_row(letter),
        "died": letter.died.timestamp(),
        "preview": letter.body[:PREVIEW_CHARS],
        "is_cut": len(letter.body) > PREVIEW_CHARS,
    }


ROUTES: Routes = (
    ("/letters/<pattern>/<part>", "GET", letters),
    ("/letters/<pattern>/<part>/all/<verb>", "GET", confirm_letters),
    ("/letters/<pattern>/<part>/one/<path:letter_id>", "GET", letter),
    ("/letters/change", "POST", change_letter),
    ("/letters/selected", "POST", change_letters),
)
