"""The tour: the bar that leads from stop to stop, and the pages before and after it.

A stop starts a run when a visitor goes there, so no run is over before its text is read. The page
after the tour reports the faults of this tour by demo, and the lines of code that handled them.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from flask import Blueprint, Response, render_template, request, session
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from handlers.home.stops import CHAPTERS, TOUR, Chapter, Step
from handlers.shared.formatting import number, plural
from handlers.shared.incidents import Delivery, Incidents, incidents
from handlers.shared.source_excerpts import Excerpt, excerpt
from handlers.shared.stage import DIED, FAULTS_IN_WORDS, moment_of
from rollforward.flask.context import clients

bp = Blueprint("tour", __name__, url_prefix="/tour")

MINUTES = 6  # Half a minute a stop: as long as its longest run, on a machine that does no more.
BEGAN = "tour_began_ms"
# The platform keeps what happened for a while: nothing is said of an older tour.
LONGEST = datetime.timedelta(hours=6)
MARKS_IN_WORDS = {"kill": "worker kill", "flush": "memcached flush", "resize": "resize"}


@dataclass(frozen=True)
class Shown:
    """A chapter, with the deliveries of its demo that the faults of this tour hit."""

    chapter: Chapter
    hits: Sequence[Delivery]
    code: Excerpt

    @property
    def faults(self) -> str:
        """The hits by kind, in words.

        >>> Shown(CHAPTERS["sums"], [], excerpt(*CHAPTERS["sums"].code, "")).faults
        'none'
        """
        kinds = Counter(fault for hit in self.hits for fault in hit.faults or ("kill_worker",))
        words = [
            f"{number(count)} {FAULTS_IN_WORDS.get(kind, DIED)}"
            for kind, count in kinds.most_common()
        ]
        return ", ".join(words) or "none"

    @property
    def repaired(self) -> int:
        """Hits whose tasks are done."""
        return sum(hit.is_repaired for hit in self.hits)


@bp.get("")
def before() -> ResponseReturnValue:
    """Show the stops and the length of the tour, before it begins."""
    return render_template(
        "tour.html", steps=TOUR, chapters=CHAPTERS, minutes=MINUTES, new_id=clients().new_id()
    )


@bp.get("/summary")
def after() -> ResponseReturnValue:
    """Show the lessons of the tour: its faults, patterns, lines of code and reading."""
    began = _began()
    seen = incidents(began) if began is not None else Incidents()
    return render_template(
        "tour_summary.html",
        began=began,
        shown=[_shown(chapter, seen) for chapter in CHAPTERS.values()],
        marks=_marks_in_words(seen),
    )


def _shown(chapter: Chapter, seen: Incidents) -> Shown:
    hits = [d for d in seen.deliveries if d.is_hit and d.path.startswith(chapter.paths)]
    return Shown(chapter, hits, excerpt(*chapter.code, chapter.pattern))


def _marks_in_words(seen: Incidents) -> str:
    counts = Counter(mark.kind for mark in seen.marks)
    words = [
        plural(count, MARKS_IN_WORDS[kind], f"{MARKS_IN_WORDS[kind]}es" if kind == "flush" else "")
        for kind, count in counts.items()
    ]
    return ", ".join(words)


def _began() -> datetime.datetime | None:
    """Return the beginning of the visitor's tour; None: there was none of late."""
    began_ms = session.get(BEGAN)
    if not isinstance(began_ms, int):
        return None
    began = moment_of(began_ms)
    return began if clients().clock.now() - began < LONGEST else None


def note_start(step: int | None) -> None:
    """Note the beginning of a tour: its summary counts the faults from then on."""
    if step is not None and (step == 1 or _began() is None):
        session[BEGAN] = round(clients().clock.now().timestamp() * 1000)


def step_of(values: MultiDict[str, str]) -> int | None:
    """Return the stop of the tour that a page or a form is part of, from 1; None: of none."""
    step = values.get("tour", 0, type=int)
    return step if 1 <= step <= len(TOUR) else None


def at_stop(url: str, step: int | None) -> str:
    """Return an address whose page has the bar of a stop; None: of none.

    >>> at_stop("/sums/visitors?tab=code#tabs", 6), at_stop("/sums/visitors", None)
    ('/sums/visitors?tab=code&tour=6#tabs', '/sums/visitors')
    """
    if step is None:
        return url
    parts = urlsplit(url)
    query = "&".join(part for part in (parts.query, f"tour={step}") if part)
    return urlunsplit(parts._replace(query=query))


@bp.after_app_request
def stay_at_stop(response: Response) -> Response:
    """Lead from a form of a stop to its demo's next page with the bar: a stop asks for presses."""
    place = response.location
    if request.method != "POST" or response.status_code != 303 or not place:
        return response
    try:
        sender = urlsplit(request.referrer or "")
    except ValueError:
        return response  # No page of ours has such an address.
    step = step_of(MultiDict(parse_qsl(sender.query)))
    is_same_demo = sender.path.split("/")[1:2] == urlsplit(place).path.split("/")[1:2]
    if is_same_demo and "tour" not in dict(parse_qsl(urlsplit(place).query)):
        response.location = at_stop(place, step)
    return response


@dataclass(frozen=True)
class Way:
    """A way from one stop to another: a form that starts the run of its demo, or a link."""

    step: int
    title: str
    demo: str


def _way(here: int, there: int) -> Way | None:
    """Return the way to a stop; one without a run of its own shows the page that is open."""
    if not 1 <= there <= len(TOUR):
        return None
    stop: Step = TOUR[there - 1]
    stays = stop.demo == TOUR[here - 1].demo and not (stop.runs and there >= here)
    return Way(there, stop.title, "" if stays else stop.demo)


def tour() -> dict[str, Any]:
    """Return the variables of the tour's bar, on a page that is a stop of it."""
    # Not the form's: a page that says what is wrong with a form must not read it again.
    step = step_of(request.args)
    if step is None:
        return {"tour": None, "in_tour": str}
    return {
        "in_tour": partial(at_stop, step=step),
        "tour": TOUR[step - 1],
        "tour_step": step,
        "tour_length": len(TOUR),
        "tour_back": _way(step, step - 1),
        "tour_next": _way(step, step + 1),
        "tour_again": _way(step, step) if TOUR[step - 1].runs else None,
        "tour_id": clients().new_id(),
    }
