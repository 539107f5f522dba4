"""Access control: only browsers and programs on this machine may use the console.

The console can run tasks and show data, so a page of another site must not reach it. A check of
Host stops DNS rebinding. Origin, Sec-Fetch-Site and a token stop its forms and fetches:

- every request: Host is a loopback name;
- forms: a token that only pages of ours contain, bound to a cookie;
- JSON API: POST carries application/json, or a span exporter's application/x-protobuf, neither of
  which a foreign form can send without asking first, and no foreign Origin.
"""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from rollforward.local.cloudtasks.server.callers import is_own_origin

log = logging.getLogger(__name__)

COOKIE = "rollforward_console"
TOKEN_FIELD = "csrf_token"
API_PREFIX = "/api/"

_LOCAL_NAMES = {"127.0.0.1", "localhost", "::1"}
# A form can send neither.
_MACHINE_TYPES = ("application/json", "application/x-protobuf")
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_SAME_SITE = {"same-origin", "none", ""}
_SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that, browsers send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

_SESSION = web.RequestKey("session", str)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guards:
    """The checks of one console; its secret lives as long as the process."""

    def __init__(self) -> None:
        """Draw a fresh secret."""
        self._secret = secrets.token_bytes(32)

    def token(self, request: web.Request) -> str:
        """Return the token for forms on a page that answers this request."""
        session = request.get(_SESSION)
        return self._token(session) if session else ""

    @property
    def middlewares(self) -> list[Middleware]:
        """The checks, outermost first."""
        return [self._add_headers, self._check_origin, self._check_form]

    @web.middleware
    async def _add_headers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_SECURITY_HEADERS)
            raise
        except Exception:
            log.exception(
                "a request of the console failed: %s %.200r", request.method, request.path
            )
            response = web.Response(status=500, text="Internal error: see the log.\n")
        response.headers.update(_SECURITY_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    @web.middleware
    async def _check_origin(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_local_host(request.headers.get("Host", "")):
            return _error(request, "The console answers to 127.0.0.1 and localhost only.")
        if not _is_own_origin(request):
            return _error(request, "This request comes from another site.")
        changes = request.method not in _SAFE_METHODS
        is_of_machine = request.content_type in _MACHINE_TYPES
        if changes and request.path.startswith(API_PREFIX) and not is_of_machine:
            return _error(request, "Send Content-Type: application/json.")
        return await handler(request)

    @web.middleware
    async def _check_form(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token of forms, and give each browser its cookie."""
        if request.path.startswith(API_PREFIX):
            return await handler(request)
        cookie = request.cookies.get(COOKIE, "")
        session = cookie if len(cookie) >= 32 else secrets.token_urlsafe(32)
        request[_SESSION] = session
        if request.method not in _SAFE_METHODS:
            await self._check_token(request, cookie)
        response = await handler(request)
        if session != cookie:
            response.set_cookie(COOKIE, session, httponly=True, samesite="Strict", path="/")
        return response

    async def _check_token(self, request: web.Request, session: str) -> None:
        try:
            fields = await request.post()
        except (ValueError, LookupError):  # No form, or of a charset that nobody knows.
            raise web.HTTPBadRequest(text="This form cannot be read.\n") from None
        token = fields.get(TOKEN_FIELD, "")
        if not session or not isinstance(token, str):
            token, session = "", "-"
        if not hmac.compare_digest(token.encode(), self._token(session).encode()):
            raise web.HTTPForbidden(
                text="This form is from an earlier run of the console. "
                "Go back, reload the page and try again.\n"
            )

    def _token(self, session: str) -> str:
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()


def is_local_host(host: str) -> bool:
    """Return whether a Host header names this machine.

    >>> is_local_host("127.0.0.1:8000"), is_local_host("[::1]:8000"), is_local_host("localhost")
    (True, True, True)
    >>> is_local_host("rebound.example:8000"), is_local_host("")
    (False, False)
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name in _LOCAL_NAMES


def _error(request: web.Request, text: str) -> web.Response:
    if request.path.startswith(API_PREFIX):
        return web.json_response({"error": text}, status=403)
    return web.Response(text=text + "\n", status=403)


def _is_own_origin(request: web.Request) -> bool:
    """Return whether a page of ours, or no page at all, sent this request.

    A link from elsewhere may open a page (navigation), but no more than that.
    """
    if request.method in _SAFE_METHODS:
        return "Origin" not in request.headers or _same_host(request.headers["Origin"], request)
    origin = request.headers.get("Origin")
    if origin is not None and not _same_host(origin, request):
        return False
    return request.headers.get("Sec-Fetch-Site", "") in _SAME_SITE


def _same_host(origin: str, request: web.Request) -> bool:
    return is_own_origin(origin, request.headers.get("Host", ""))
