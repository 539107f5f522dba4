"""OIDC tokens: who signed them, for whom, on whose behalf."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from google.auth import exceptions as auth_errors

log = logging.getLogger(__name__)

CERTS_TTL_S = 3600.0
# While they cannot be fetched anew, older ones count as well: an outage of the signer's web server
# stops no task. The signer publishes a key long before it signs by it.
MAX_CERTS_AGE_S = 6 * 3600.0
# An unknown key fetches the certificates again, but a caller may not make us do that all the time.
MIN_BETWEEN_FETCHES_S = 30.0
# Without certificates everybody waits for the one who fetches: not again and again.
MIN_AFTER_FAILURE_S = 1.0
FETCH_TIMEOUT_S = 3.0
CLOCK_SKEW_S = 10
LATEST_S = 10**11  # In the year 5138.
# What Cloud Run, once it has checked a token, may put in the place of the signature.
REMOVED = ".SIGNATURE_REMOVED_BY_GOOGLE"
# What reading a token may end in when a stranger made it; JSON nested deep is a RecursionError.
_UNREADABLE = (ValueError, TypeError, KeyError, RecursionError, auth_errors.GoogleAuthError)


class BadTokenError(ValueError):
    """The token does not prove its bearer."""


class CertsUnavailableError(Exception):
    """The signer's certificates cannot be fetched: no token can be verified."""


class TokenVerifier:
    """Verifies tokens against their signer's published certificates, fetched once an hour."""

    def __init__(self, certs_url: str, issuers: Sequence[str], *, algorithm: str = "RS256") -> None:
        self._certs_url = certs_url
        self._algorithm = algorithm
        self._issuers = tuple(issuers)
        self._certs: Mapping[str, str] = {}
        self._fetched_at = self._tried_at = -MAX_CERTS_AGE_S
        self._lock = threading.Lock()

    def verify(self, token: str, *, audience: str, account: str) -> None:
        """Check signature, times, issuer, audience and account.

        The audience alone proves little: any Google account may mint a token for any.

        Raises:
            BadTokenError: refuse the caller.
            CertsUnavailableError: the caller is to retry.
        """
        claims = self.claims(token, [audience])
        if not account or claims.get("email") != account:
            raise BadTokenError(f"account {claims.get('email')!r}, not {account!r}"[:300])
        if claims.get("email_verified") is not True:
            raise BadTokenError("account not verified")

    def claims(self, token: str, audiences: Sequence[str]) -> Mapping[str, Any]:
        """Return the claims of a token, after checking signature, audience, issuer and times.

        Raises:
            BadTokenError, CertsUnavailableError: as of `verify`.
        """
        if not audiences or not all(audiences):
            raise BadTokenError("no audience to compare with")
        claims = self._claims(token)
        # The signature holds, so this is no stranger's text: the log may say what is wrong.
        if claims.get("aud") not in audiences:
            raise BadTokenError(f"audience {claims.get('aud')!r}, not {audiences[0]!r}"[:300])
        if claims.get("iss") not in self._issuers:
            raise BadTokenError(f"issuer {claims.get('iss')!r}, not {self._issuers[0]!r}"[:300])
        times = [claims.get(name, 0) for name in ("iat", "exp", "nbf")]
        if not all(_is_time(claimed) for claimed in times):
            raise BadTokenError("a time that is none")
        if times[-1] > time.time() + CLOCK_SKEW_S:
            raise BadTokenError("not valid yet")
        return claims

    def _claims(self, token: str) -> Mapping[str, Any]:
        from google.auth import jwt  # With the first token: it loads a library of cryptography.

        if token.endswith(REMOVED):  # Anybody could write this.
            raise BadTokenError("Cloud Run has removed the signature: see docs/howto/deploy.md")
        try:
            header = jwt.decode_header(token)
            certs = self._certs_for(str(header.get("kid")))
            if header.get("alg") != self._algorithm:
                raise BadTokenError("algorithm")
            return jwt.decode(  # type: ignore[no-any-return]
                token, certs=certs, clock_skew_in_seconds=CLOCK_SKEW_S
            )
        except CertsUnavailableError:
            raise
        except _UNREADABLE as error:
            # What stands behind a colon is the token, or a part of it: not for the log.
            raise BadTokenError(str(error).partition(":")[0][:100]) from error

    def _certs_for(self, key_id: str) -> Mapping[str, str]:
        certs = self._certs_within(CERTS_TTL_S)
        if key_id in certs:  # Before the lock, which a fetch for a stranger's key holds meanwhile.
            return certs
        if key_id in self._certs_within(MAX_CERTS_AGE_S):
            self._refresh()
            return self._certs
        with self._lock:
            certs, now_s = self._certs_within(CERTS_TTL_S), time.monotonic()
            if key_id in certs:
                return certs
            pause_s = MIN_BETWEEN_FETCHES_S if certs else MIN_AFTER_FAILURE_S
            if now_s - self._tried_at > pause_s:
                self._fetch_and_keep()
            elif not certs:
                raise CertsUnavailableError("they could not be fetched a moment ago")
            return self._certs

    def _refresh(self) -> None:
        """Fetch certificates anew, unless another thread does; if that fails they stay."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self._tried_at > MIN_BETWEEN_FETCHES_S:
                self._fetch_and_keep()
        except CertsUnavailableError as error:
            age_s = time.monotonic() - self._fetched_at
            log.warning("certificates of %d minutes ago are used: %s", age_s // 60, error)
        finally:
            self._lock.release()

    def _certs_within(self, max_age_s: float) -> Mapping[str, str]:
        """Return the certificates that are known, unless they are older."""
        return self._certs if time.monotonic() - self._fetched_at <= max_age_s else {}

    def _fetch_and_keep(self) -> None:
        try:
            self._certs = self._fetch()
            self._fetched_at = time.monotonic()
        finally:
            # Its end counts: each of those who waited for one that hung would try it again.
            self._tried_at = time.monotonic()

    def _fetch(self) -> Mapping[str, str]:
        try:
            answer = requests.get(self._certs_url, timeout=FETCH_TIMEOUT_S)
            answer.raise_for_status()
            certs = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise CertsUnavailableError(str(error)) from error
        if not isinstance(certs, dict) or not certs:
            raise CertsUnavailableError(f"{self._certs_url} holds no certificates")
        return certs


def _is_time(claimed: Any) -> bool:
    """Return whether a claim is a time in seconds; NaN, which is never over, is none."""
    return type(claimed) in (int, float) and 0 <= claimed < LATEST_S
