"""Parts of a page that are asked for again and again: whole when they changed, else 304."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from flask import make_response, render_template, request
from flask.typing import ResponseReturnValue

# New in every answer, and of no consequence: a form that stands there already is as good.
FORM_SEALS = re.compile(r'(name="(?:csrf_token|id)" value=")[^"]*')


def live_part(template: str, **context: Any) -> ResponseReturnValue:
    """Return a part of a page, or nothing if the script has that very part already."""
    html = render_template(template, is_live_part=True, **context)
    response = make_response(html)
    response.set_etag(hashlib.sha256(FORM_SEALS.sub(r"\1", html).encode()).hexdigest()[:32])
    # Asked for by a script that keeps the last part itself; no cache in between may answer.
    response.headers["Cache-Control"] = "no-store"
    return response.make_conditional(request)
