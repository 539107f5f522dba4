"""What all forms have: an id of their own."""

from __future__ import annotations

import re

from flask import abort, request

ID_PATTERN = re.compile(r"[0-9a-f]{32}")


def id_in_form() -> str:
    """Return the id that the form brought along, so that sending it twice does it once."""
    form_id = request.form.get("id", "")
    if not ID_PATTERN.fullmatch(form_id):
        abort(400, "This form is incomplete. Reload the page and try again.")
    return form_id
