"""Invitations: parties, their guests, and the mails to them."""

from __future__ import annotations

from flask import Flask, Request

from handlers.invitations import routes
from rollforward.flask.live import topic_of_run, watch

JOBS = ("/tasks/continuations/tell-guests", "/tasks/continuations/import-guests")


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    watch(app, "invitations", "/invitations", "/demo/invitations", *JOBS)
    # A party's page watches its own requests and runs, not those of other parties.
    watch(app, _topic_of_form, "/invitations/")
    watch(app, topic_of_run, *JOBS)


def _topic_of_form(form: Request) -> str | None:
    """Return the topic of the party that a form changes."""
    party_id = (form.view_args or {}).get("party_id")
    return routes.party_topic(party_id) if party_id else None
