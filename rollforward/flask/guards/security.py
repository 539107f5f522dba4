"""Headers of every answer, and proof that a form was ours."""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import Flask, Response, abort, request
from werkzeug.exceptions import NotFound
from werkzeug.sansio.utils import host_is_trusted

from rollforward.flask.context import (
    CONSOLE,
    CONSOLE_API,
    is_api_path,
    is_library_endpoint,
    is_machine_path,
)
from rollforward.flask.guards import csrf, fields
from rollforward.flask.settings import Settings

LOCAL_HOSTS = ("127.0.0.1", "localhost")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)


def register(app: Flask, settings: Settings, *, guards_pages: bool = True) -> None:
    """Guard each request of the app and dress each answer.

    Args:
        guards_pages: False: only those of the library's endpoints.
    """
    csrf.register(app)

    def is_guarded() -> bool:
        return guards_pages or is_library_endpoint()

    @app.before_request
    def hide_console() -> None:
        """A caller without a role meets no console, but an address that nobody has."""
        if request.blueprint in (CONSOLE, CONSOLE_API) and app.extensions[CONSOLE].caller() is None:
            request.url_rule = request.view_args = None
            request.routing_exception = NotFound()

    @app.before_request
    def check_host() -> Response | None:
        """A laptop's app answers under no other name: a page could bind its own to 127.0.0.1.

        Deployed, the front end knows the names of the app.
        """
        is_named = not settings.is_local or host_is_trusted(request.host, LOCAL_HOSTS)
        if is_named or not is_guarded():
            return None
        message = f"This app answers to {' and '.join(LOCAL_HOSTS)} only.\n"
        return Response(message, 400, content_type="text/plain")

    @app.before_request
    def check_head() -> None:
        if not guards_pages and is_library_endpoint():  # Otherwise the app's configuration does.
            fields.bound_body()
        if is_guarded():
            fields.check_head()

    @app.before_request
    def check_origin() -> None:
        """A changing request of a page needs our token, and must not come from elsewhere."""
        if request.method in SAFE_METHODS or is_machine_path() or not is_guarded():
            return
        if request.mimetype != "multipart/form-data":
            # A form's bound that holds for parts alone: other forms are taken apart at once.
            request.max_content_length = fields.MAX_FORM_BYTES
        if _is_from_elsewhere():
            abort(403, "This form was sent from another site.")
        if is_api_path():
            return  # Takes nothing but JSON, and no cookies.
        fields.check_form()  # The token is a field, too.
        csrf.protect()

    @app.after_request
    def add_security_headers(response: Response) -> Response:
        headers = response.headers
        if not is_guarded():
            return response
        headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "same-origin"
        headers["Cross-Origin-Opener-Policy"] = "same-origin"
        if not settings.is_local:
            headers["Strict-Transport-Security"] = "max-age=31536000"
        if "Cache-Control" not in headers:
            headers["Cache-Control"] = "no-store"
        return response


def _is_from_elsewhere() -> bool:
    """Return whether a page of another site sent this request.

    A browser that says which site it was is believed: behind a proxy only it knows the name in its
    address bar. Otherwise the Origin, or the page that sent it, has the name that was asked.
    """
    if site := request.headers.get("Sec-Fetch-Site"):
        return site not in ("same-origin", "none")
    sender = request.headers.get("Origin") or request.headers.get("Referer")
    try:
        return sender is not None and urlsplit(sender).netloc != request.host
    except ValueError:
        return True
