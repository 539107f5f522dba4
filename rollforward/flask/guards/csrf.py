"""CSRF tokens of forms, by Flask-WTF.

The first form loads the library, for it brings all fields of WTForms along: a tenth of the app's
start, which tasks, cron and pages without a form do without.
"""

from __future__ import annotations

from typing import Any

from flask import Flask, abort, current_app, request

from rollforward.flask.context import (
    API_BLUEPRINTS,
    CONSOLE,
    CONSOLE_API,
    MACHINE_BLUEPRINTS,
    is_library_endpoint,
)

# Where Flask-WTF keeps the CSRFProtect of an app.
EXTENSION = "csrf"
# Of the console's forms; an app may have another name for the field of its own.
FIELD = "csrf_token"
# As Flask-WTF has them, where the app has not set its own.
DEFAULTS: dict[str, Any] = {
    "WTF_CSRF_ENABLED": True,
    "WTF_CSRF_METHODS": {"POST", "PUT", "PATCH", "DELETE"},
    "WTF_CSRF_FIELD_NAME": FIELD,
    "WTF_CSRF_HEADERS": ["X-CSRFToken", "X-CSRF-Token"],
    "WTF_CSRF_TIME_LIMIT": 24 * 3600,
    "WTF_CSRF_SSL_STRICT": True,
}

# A browser keeps what was typed when it goes back, mostly with a fresh token, and no reload does.
ADVICE = "Go back and send it again. If that fails, copy what you have typed, and reload the page."


def register(app: Flask) -> None:
    """Give templates `csrf_token()`."""
    for name, value in DEFAULTS.items():
        app.config.setdefault(name, value)
    app.jinja_env.globals.setdefault("csrf_token", token)


def token() -> str:
    """Return the token that a form of this visitor has to bring along."""
    from flask_wtf.csrf import generate_csrf

    return str(generate_csrf())


def exempt_machines(app: Flask) -> None:
    """Let an app's own CSRFProtect pass deliveries, sweeps and APIs, which prove their callers.

    And the console, whose forms have another field, and are checked here.
    """
    if (own := app.extensions.get(EXTENSION)) is not None:
        for name in (*MACHINE_BLUEPRINTS, *API_BLUEPRINTS, CONSOLE, CONSOLE_API):
            if name in app.blueprints:
                own.exempt(app.blueprints[name])


def protect() -> None:
    """Refuse a changing request whose form does not bring our token.

    An app with a CSRFProtect of its own checks its pages itself, and knows which it has exempted.
    """
    if EXTENSION in current_app.extensions and not is_library_endpoint():
        return
    from flask_wtf.csrf import CSRFError, CSRFProtect

    check = CSRFProtect()
    sent = (is_library_endpoint() and request.form.get(FIELD)) or check._get_csrf_token()
    check._get_csrf_token = lambda: _signed_by_first_key(sent)
    try:
        check.protect()
    except CSRFError as error:
        abort(403, f"{error.description} {ADVICE}")


def _signed_by_first_key(sent: str | None) -> str | None:
    """Return a form's token as it is, or as the first key signs it if an older key has.

    Flask-WTF knows one key alone, and a form may be open while the keys are changed.
    """
    from flask_wtf.csrf import ValidationError, validate_csrf

    for key in current_app.config.get("SECRET_KEY_FALLBACKS") or ():
        try:
            validate_csrf(sent, secret_key=key)
        except ValidationError:
            continue
        return token()
    return sent
