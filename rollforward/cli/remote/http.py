"""Requests to a JSON API, whose failures are sentences; a token goes to its own host alone."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from rollforward.cli.errors import (
    CliError,
    NotAllowedError,
    NotFoundError,
    UnreachableError,
    WrongUsageError,
)
from rollforward.cli.remote.tables import printable
from rollforward.loopback import is_loopback

TIMEOUT_S = 30.0
MAX_BYTES = 16 * 1024 * 1024
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}")
_MAX_DETAIL = 500
_PROBLEM_HEADER = "X-Devserver-Problem"  # Of the local platform, in the place of a broken app.
_NO_ROUTE = "The requested URL was not found"  # As Flask answers 404, also in an app's own API.


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows nothing: another host would get the token."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True)
class Endpoint:
    """The beginning of an API's URLs.

    Attributes:
        absent: The sentence for a host without this API.
        token: A bearer token; "" sends none.
    """

    url: str
    absent: str
    token: str = field(default="", repr=False)

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """Return the answer to a GET; empty parameters are left out.

        Raises:
            CliError: as of `_send`.
        """
        text = urlencode({name: value for name, value in query.items() if value not in ("", None)})
        return self._send("GET", f"{path}?{text}" if text else path, None)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a POST of JSON.

        Raises:
            CliError: as of `_send`.
        """
        return self._send("POST", path, json.dumps(body or {}).encode())

    def _send(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        """Send a request.

        Raises:
            UnreachableError: nothing answers.
            NotAllowedError: the caller is refused.
            NotFoundError: the API does not exist, or does not know the thing.
            CliError: the request is refused; the server's own words say why.
        """
        request = urllib.request.Request(self.url + path, body, method=method)
        request.add_header("Accept", "application/json")
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
            # Cloud Run checks this one, takes its signature, and hands the other on as it is.
            request.add_header("X-Serverless-Authorization", f"Bearer {self.token}")
        try:
            with _opener(self.url).open(request, timeout=TIMEOUT_S) as response:
                content = response.read(MAX_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise self._error(error.code, error.read(MAX_BYTES), error.headers) from None
        except (OSError, HTTPException) as error:
            reason = printable(str(getattr(error, "reason", error)))
            if body is None or isinstance(error, urllib.error.URLError):
                raise UnreachableError(f"Nothing answers at {self.url}: {reason}") from None
            raise UnreachableError(
                f"{self.url} has got the change and does not answer: {reason}. It may have been "
                "made: look before you ask for it again."
            ) from None
        answer = _json(content)
        if answer is None:
            raise NotFoundError(self.absent)
        return answer

    def _error(self, status: int, content: bytes, headers: Any) -> CliError:
        problem = _json(content) or {}
        detail = printable(str(problem.get("detail") or problem.get("error") or ""))[:_MAX_DETAIL]
        if 300 <= status < 400:
            host = urlsplit(headers.get("Location") or "").hostname or "another page"
            return NotAllowedError(
                f"{self.url} redirects to {printable(host)}, which is perhaps a login: send a "
                "token that it accepts, by --token or ROLLFORWARD_TOKEN."
            )
        if status in (401, 403):
            return NotAllowedError(detail or f"{self.url} does not accept this caller ({status}).")
        if status in (404, 405):
            # The local platform's API has an `error`, and a console's has problem details.
            is_problem = headers.get_content_type() == "application/problem+json"
            is_named = "error" in problem or (is_problem and not detail.startswith(_NO_ROUTE))
            return NotFoundError(detail if is_named and detail else self.absent)
        if status == 400:
            return WrongUsageError(detail or f"{self.url} refuses the request.")
        if problem_of_app := headers.get(_PROBLEM_HEADER):
            reason = printable(unquote(problem_of_app.partition(" ")[2]))[:_MAX_DETAIL]
            return CliError(f"The app cannot be loaded: {reason}")
        return CliError(detail or f"{self.url} answers {status}: try again in a moment.")


def endpoint(url: str, path: str, absent: str, token: str = "") -> Endpoint:
    """Return the API at a path of a host, for a URL and a token that a person gave.

    Raises:
        WrongUsageError: the URL is none, or the token would travel in plain text.
    """
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and not parts.username
        _ = parts.port
    except ValueError:
        is_whole = False
    if not is_whole or parts.query or parts.fragment or not url.isascii() or not url.isprintable():
        raise WrongUsageError(f"A URL is like https://shop.example, not {printable(url)[:100]!r}.")
    if token and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise WrongUsageError("A token is sent by https only, or to this machine.")
    if token and not _TOKEN.fullmatch(token):
        raise WrongUsageError("The token has characters that no bearer token has, or is too long.")
    return Endpoint(url.rstrip("/") + path, absent, token)


def _opener(url: str) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if is_loopback(urlsplit(url).hostname or ""):
        # Not by a proxy: it would look for this address on its own machine.
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def _json(content: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None
