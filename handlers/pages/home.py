"""The front page."""

from __future__ import annotations

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue

from handlers.endpoints.health import service_states
from models.demos.invitations import newest_parties
from pipelines.tasks import count_open

bp = Blueprint("home", __name__)

LATEST = 5


@bp.get("/")
def home() -> ResponseReturnValue:
    """Say what this is, what works, and where to start."""
    return render_template(
        "home.html",
        states=service_states(),
        parties=newest_parties().fetch(LATEST),
        dead=count_open(),
    )
