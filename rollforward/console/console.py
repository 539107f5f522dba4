"""The console as an app mounts it: where it is, and who may enter."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flask import Blueprint, Flask, abort, request
from flask.typing import ResponseReturnValue
from werkzeug.routing import BaseConverter

from rollforward.console import api, pages
from rollforward.console.access import Access, Caller, Role, caller_of
from rollforward.flask.context import CONSOLE, CONSOLE_API, is_api_path
from rollforward.flask.guards.security import SAFE_METHODS

_PREFIX = re.compile(r"(/[a-z0-9_-]+)+")
_TRACE_URL = re.compile(r"https?://[^{}\s]*\{trace_id\}[^{}\s]*")
_ANY_METHOD = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True)
class Console:
    """Pages and API of an app's operators.

    Args:
        access: Gives the role of a caller from the request, or a `Caller` with a name for the audit
            trail; None: the caller gets 404 on every route.
        prefix: Beginning of its URLs.
        trace_url: The URL of a trace at your backend, with `{trace_id}`; "": traces have no link.
            On the local platform a trace leads to that console.

    Raises:
        ValueError: the prefix is none, or the URL of a trace has no place for its id.
    """

    access: Access
    prefix: str = "/rollforward"
    trace_url: str = ""

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError(f"prefix must be like '/rollforward', got {self.prefix!r}")
        if self.trace_url and not _TRACE_URL.fullmatch(self.trace_url):
            raise ValueError(
                "trace_url must be like 'https://traces.example.com/{trace_id}', "
                f"got {self.trace_url!r}"
            )

    def register(self, app: Flask) -> None:
        """Mount the pages and the API."""
        app.extensions[CONSOLE] = self
        app.url_map.converters["rollforward_rest"] = _Rest
        app.register_blueprint(self._blueprint(CONSOLE_API, "/api/v1", api.ROUTES))
        app.register_blueprint(self._blueprint(CONSOLE, "", pages.ROUTES))

    def caller(self) -> Caller | None:
        """Return who sends the current request; None: one without a role."""
        return caller_of(self.access)

    def _blueprint(self, name: str, path: str, routes: api.Routes) -> Blueprint:
        bp = Blueprint(name, __name__, url_prefix=self.prefix + path)
        for rule, method, view in routes:
            bp.add_url_rule(
                rule,
                view.__name__,
                view,
                methods=[method],
                strict_slashes=False,
                # A redirect from "a//b" to "a/b" would lead to another key or run.
                merge_slashes=False,
                provide_automatic_options=False,
            )
        # Takes what no route takes: a method of another route, and addresses that the router would
        # answer by a redirect. Either would tell a stranger that there is something.
        bp.add_url_rule(
            "/<rollforward_rest:rest>",
            "nothing",
            _not_found,
            methods=_ANY_METHOD,
            strict_slashes=False,
            provide_automatic_options=False,
        )
        bp.before_request(self._check_role)
        return bp

    def _check_role(self) -> None:
        """End a request whose caller has no role, or none that may change anything."""
        caller = self.caller()
        if caller is None:
            abort(404)
        if request.method in SAFE_METHODS:
            return
        if caller.role is not Role.OPERATE:
            abort(403, "Your role can only read.")
        if is_api_path() and "Cookie" in request.headers:
            abort(403, "Changes by the API are taken without cookies: send a bearer token.")


class _Rest(BaseConverter):
    """Whatever is behind the prefix, slashes and nothing included."""

    regex = ".*?"
    part_isolating = False
    weight = 1_000


def _not_found(**places: str) -> ResponseReturnValue:
    abort(404)
