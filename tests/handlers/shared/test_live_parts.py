"""Parts of a page that are asked for again and again: whole when they changed, else 304."""

from __future__ import annotations

import pytest
from flask import Flask

from handlers.shared.live import live_part

pytestmark = pytest.mark.fast

FORM = """<input type="hidden" name="csrf_token" value="{{ seal }}">
<input type="hidden" name="id" value="{{ id }}">
<input name="guests" value="{{ guests }}">"""


def tag(**shown: str) -> str:
    """Return the tag of a part with a form."""
    app = Flask(__name__)
    app.jinja_env.loader = None
    with app.test_request_context("/live"):
        return str(live_part(app.jinja_env.from_string(FORM), **shown).headers["ETag"])  # type: ignore[arg-type, union-attr]


def test_only_the_seals_of_a_form_may_change_unseen() -> None:
    """A number that a form shows is part of the page, as all else is."""
    first = tag(seal="a", id="1", guests="7")

    assert tag(seal="b", id="2", guests="7") == first
    assert tag(seal="a", id="1", guests="8") != first
