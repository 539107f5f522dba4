"""The front page: what this is, what runs just now, and one press to run each of it."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue

from handlers.grades.charts import bars, is_catching_up
from handlers.home.stops import TOUR
from handlers.home.tour import MINUTES
from handlers.invitations.stage import as_data, canvas_of, waiting_canvas
from handlers.shared.charts import page_bars
from handlers.shared.held_boxes import MAX_HELD_CHARS, HeldBoxes, held_boxes
from handlers.shared.live import live_part
from handlers.sums.charts import sizes
from models.invitations import newest_parties
from pipelines.grades.students import DEMO
from pipelines.grades.views import GRADES, StudentsByGrade
from pipelines.invitations.send_progress import latest_send
from pipelines.sums import sums
from rollforward.continuations.entities import RUNNING
from rollforward.flask.context import clients
from rollforward.flask.endpoints.health import service_states
from rollforward.flask.guards.fields import limits
from rollforward.tasks import count_open

bp = Blueprint("home", __name__)

LATEST = 5
BATCHES_SHOWN = 16


@bp.get("/")
def home() -> ResponseReturnValue:
    """Show the front page: an introduction, and each demo's state."""
    parties = newest_parties().fetch(LATEST)
    return render_template(
        "home.html",
        states=service_states(),
        parties=parties,
        dead=count_open(),
        tour_stops=len(TOUR),
        tour_minutes=MINUTES,
        **_pictures(parties),
    )


@bp.get("/live")
@limits(has=MAX_HELD_CHARS)
def live() -> ResponseReturnValue:
    """Return the pictures of what runs just now."""
    pictures = _pictures(newest_parties().fetch(1), held_boxes())
    return live_part("_home_live.html", **pictures)


def _busiest_sum() -> tuple[str, Any]:
    """Return the sum that was written last, and its row; None: there is none."""
    rows: list[tuple[str, Any]] = [
        (name, row) for name, row in sums.listed() if row is not None and row.recent
    ]
    return max(rows, key=lambda row: str(row[1].recent[0]["folded"]), default=("", None))


def _pictures(parties: list[Any], held: HeldBoxes | None = None) -> dict[str, Any]:
    """Return the demos' current state: the newest party, the chart, the busiest sum."""
    party = parties[0] if parties else None
    send = latest_send(clients(), party) if party else None
    reading = GRADES.read(clients(), StudentsByGrade, prefix=(DEMO,))
    name, busiest = _busiest_sum()
    canvas = canvas_of(send.latest, [], held) if send else waiting_canvas(1000, 100)
    is_sending = send is not None and send.latest.state == RUNNING
    return {
        "new_id": clients().new_id(),
        "party": party,
        "send": send,
        "picture": as_data(canvas),
        "still": page_bars(canvas),
        "bars": bars(reading, []),
        "count": sum(row.count for row in reading.rows),
        "sum_name": name,
        "sum": busiest,
        "sizes": sizes(busiest.recent[:BATCHES_SHOWN], 0) if busiest else [],
        "is_moving": is_sending or is_catching_up(reading),
    }
