"""Access: callers and their roles; hooks for Identity-Aware Proxy and OIDC tokens."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flask import Request, abort, request

from rollforward.flask.context import request_notes, settings, wiring
from rollforward.flask.oidc import BadTokenError, CertsUnavailableError, TokenVerifier

log = logging.getLogger(__name__)

IAP_HEADER = "X-Goog-IAP-JWT-Assertion"
IAP_CERTS_URL = "https://www.gstatic.com/iap/verify/public_key"
IAP_ISSUER = "https://cloud.google.com/iap"
# In front of the address, where IAP names the provider of the identity.
IAP_PROVIDER = "accounts.google.com:"


class Role(enum.StrEnum):
    """Roles: READ looks at everything and changes nothing, OPERATE also changes."""

    READ = "read"
    OPERATE = "operate"


@dataclass(frozen=True)
class Caller:
    """A caller: its role, and its name in the audit trail."""

    role: Role
    name: str


# None: as if there were no console.
Access = Callable[[Request], Role | Caller | None]


def caller_of(access: Access) -> Caller | None:
    """Return who asks, by the hook, which is called once for each request."""
    notes = request_notes()
    if "caller" not in notes:
        notes["caller"] = None  # A hook that raises is not asked again.
        notes["caller"] = _to_caller(access(request))
    return notes["caller"]  # type: ignore[no-any-return]


def _to_caller(answer: object) -> Caller | None:
    """Return the caller that a hook names; None also for False, as of `is_admin and Role.READ`.

    Raises:
        TypeError: the hook returns something else.
    """
    if isinstance(answer, Role):
        return Caller(answer, "not named")
    if isinstance(answer, Caller):
        return answer
    if answer:
        raise TypeError(f"access must return a Role, a Caller or None, got {answer!r:.50}")
    return None


def local(request: Request) -> Caller | None:
    """Admit every caller on the local platform, and none elsewhere.

    There an app answers to the names of its own machine only.
    """
    return Caller(Role.OPERATE, "this machine") if settings().is_local else None


def first_of(*hooks: Access) -> Access:
    """Return a hook that takes the first answer of several."""

    def access(request: Request) -> Role | Caller | None:
        return next((answer for hook in hooks if (answer := hook(request))), None)

    return access


def iap(
    *,
    audience: str,
    readers: Collection[str] = (),
    operators: Collection[str] = (),
    certs_url: str = IAP_CERTS_URL,
) -> Access:
    """Return a hook for people behind Identity-Aware Proxy, by the assertion that it signs.

    The header with the plain address proves nothing: a caller that reaches the app past the proxy
    may send it.

    Args:
        audience: /projects/NUMBER/apps/PROJECT on App Engine,
            /projects/NUMBER/locations/REGION/services/SERVICE on Cloud Run.
        readers, operators: Addresses; "@example.com" is all of a domain.

    Raises:
        ValueError: there is no audience, or a list is one text.
    """
    roles = _roles([audience], readers, operators)
    verifier = TokenVerifier(certs_url, [IAP_ISSUER], algorithm="ES256")

    def access(request: Request) -> Caller | None:
        token = request.headers.get(IAP_HEADER, "")
        claims = _claims(verifier, token, [audience])
        return None if claims is None else roles(str(claims.get("email", "")))

    return access


def oidc(
    *,
    audience: str | Sequence[str],
    readers: Collection[str] = (),
    operators: Collection[str] = (),
) -> Access:
    """Return a hook for programs, by `Authorization: Bearer` with an ID token of Google.

    Args:
        audience: Audiences that a token may be for: the URL of the app. `gcloud auth
            print-identity-token` of a person has the client of gcloud in its place:
            32555940559.apps.googleusercontent.com.
        readers, operators: Addresses; "@example.com" is all of a domain.

    Raises:
        ValueError: there is no audience, or a list is one text.
    """
    audiences = [audience] if isinstance(audience, str) else list(audience)
    roles = _roles(audiences, readers, operators)

    def access(request: Request) -> Caller | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        claims = _claims(wiring().verifier, token, audiences)
        if claims is None or claims.get("email_verified") is not True:
            return None
        return roles(str(claims.get("email", "")))

    return access


def _claims(
    verifier: TokenVerifier, token: str, audiences: Sequence[str]
) -> Mapping[str, Any] | None:
    """Return the claims that a token proves; None: it proves nothing."""
    if not token:
        return None
    try:
        return verifier.claims(token, audiences)
    except BadTokenError as error:
        log.warning("refused at the console: %r", str(error))
        return None
    except CertsUnavailableError as error:
        log.warning("cannot verify callers: %s", error)
        abort(503, "The signer's certificates cannot be fetched. Try again in a moment.")


def _roles(
    audiences: Sequence[str], readers: Collection[str], operators: Collection[str]
) -> Callable[[str], Caller | None]:
    """Return the function from an address to its caller."""
    if not audiences or not all(audiences):
        raise ValueError("audience must say for whom a token is, got none")
    for people in (readers, operators):
        if isinstance(people, str):
            raise ValueError(f"give addresses as a list, got {people!r}")  # noqa: TRY004
    reading, operating = ({text.lower() for text in people} for people in (readers, operators))

    def role_of(email: str) -> Caller | None:
        address = email.removeprefix(IAP_PROVIDER).lower()
        person, _, domain = address.rpartition("@")
        if not person or not domain:
            return None
        # Other providers may let anybody claim an address; IAP puts their names in front.
        names = {address} if ":" in person else {address, f"@{domain}"}
        if names & operating:
            return Caller(Role.OPERATE, address)
        return Caller(Role.READ, address) if names & reading else None

    return role_of
