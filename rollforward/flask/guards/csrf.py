"""CSRF tokens of forms, by Flask-WTF.

The first form loads the library, for it brings all fields of WTForms along: a tenth of the app's
start, which tasks, cron and pages without a form do without.
"""

from __future__ import annotations

from typing import Any

from flask import Flask, abort

# As Flask-WTF has them, where the app has not set its own.
DEFAULTS: dict[str, Any] = {
    "WTF_CSRF_ENABLED": True,
    "WTF_CSRF_METHODS": {"POST", "PUT", "PATCH", "DELETE"},
    "WTF_CSRF_FIELD_NAME": "csrf_token",
    "WTF_CSRF_HEADERS": ["X-CSRFToken", "X-CSRF-Token"],
    "WTF_CSRF_TIME_LIMIT": 24 * 3600,
    "WTF_CSRF_SSL_STRICT": True,
}


def register(app: Flask) -> None:
    """Give templates `csrf_token()`."""
    for name, value in DEFAULTS.items():
        app.config.setdefault(name, value)
    app.jinja_env.globals["csrf_token"] = token


def token() -> str:
    """Return the token that a form of this visitor has to bring along."""
    from flask_wtf.csrf import generate_csrf

    return str(generate_csrf())


def protect() -> None:
    """Refuse a changing request whose form does not bring our token."""
    from flask_wtf.csrf import CSRFError, CSRFProtect

    try:
        CSRFProtect().protect()
    except CSRFError as error:
        abort(403, f"{error.description} Go back, reload the page and try again.")
