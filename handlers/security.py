"""Headers of every answer, and proof that a form was ours."""

from __future__ import annotations

from flask import Flask, Response, abort, request
from flask_wtf.csrf import CSRFProtect

from handlers.settings import Settings
from handlers.wiring import is_api_path, is_machine_path

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


def register(app: Flask, csrf: CSRFProtect, settings: Settings) -> None:
    """Guard each request of the app and dress each answer."""

    @app.before_request
    def check_origin() -> None:
        """A changing request of a page needs our token, and must not come from elsewhere."""
        if request.method in SAFE_METHODS or is_machine_path():
            return
        if request.mimetype != "multipart/form-data":
            # A form's bound that holds for parts alone: other forms are taken apart at once.
            request.max_content_length = app.config["MAX_FORM_MEMORY_SIZE"]
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            abort(403, "This form was sent from another site.")
        if is_api_path():
            return  # Takes nothing but JSON, and no cookies: handlers/sums_api.py says why.
        csrf.protect()

    @app.after_request
    def dress(response: Response) -> Response:
        headers = response.headers
        headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "same-origin"
        headers["Cross-Origin-Opener-Policy"] = "same-origin"
        if not settings.is_local:
            headers["Strict-Transport-Security"] = "max-age=31536000"
        if "Cache-Control" not in headers:
            headers["Cache-Control"] = "no-store"
        return response
