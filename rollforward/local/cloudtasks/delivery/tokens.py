"""OIDC tokens for HTTP targets, signed with a key of our own.

A handler checks them exactly as it checks Google's, against other
certificates: certs() has the form of www.googleapis.com/oauth2/v1/certs,
jwks() the form of /oauth2/v3/certs.

Source: cloud.google.com/tasks/docs/creating-http-target-tasks#token
"""

import functools
import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollforward.local.cloudtasks.delivery.signing_key import SigningKey

LIFETIME_S = 3600
# A token is minted anew when it is older than this: minting costs about a
# millisecond, and a handler must still get a token that is good for long.
_REUSE_S = 300
_MAX_CACHED = 1000


class TokenIssuer:
    """Mints tokens for service accounts that exist in name only.

    Args:
        pem: Returns the private key. The first token, or the first look at the key, calls it.
        issuer: The `iss` claim.
        real_now: The time other programs see: a handler does not know of a
            clock that was advanced, and refuses a token from the future.
    """

    def __init__(
        self, pem: Callable[[], bytes], issuer: str, real_now: Callable[[], float]
    ) -> None:
        self.issuer = issuer
        self._pem = pem
        self._real_now = real_now
        self._cache: dict[tuple[str, str], tuple[float, str]] = {}

    @functools.cached_property
    def _key(self) -> "SigningKey":
        from rollforward.local.cloudtasks.delivery.signing_key import SigningKey

        return SigningKey(self._pem())

    @property
    def key_id(self) -> str:
        """The id of the key."""
        return self._key.id

    def oidc_token(self, email: str, audience: str) -> str:
        """Return a token for the service account, for one audience."""
        now_s = self._real_now()
        cached = self._cache.get((email, audience))
        if cached and 0 <= now_s - cached[0] < _REUSE_S:
            return cached[1]
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        token = self._mint(email, audience, int(now_s))
        self._cache[email, audience] = (now_s, token)
        return token

    def access_token(self, email: str, scope: str) -> str:
        """Return an opaque OAuth token; no Google API would take it."""
        digest = hashlib.sha256(f"{self.key_id} {email} {scope}".encode()).hexdigest()
        return f"emulated-{digest}"

    def certs(self) -> dict[str, str]:
        """Return the certificate in PEM by its key id, as google-auth reads it."""
        return {self.key_id: self._key.certificate()}

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        """Return the public key as a JSON web key set."""
        return {"keys": [self._key.web_key()]}

    def configuration(self, keys_url: str) -> dict[str, Any]:
        """Return the discovery document of OpenID Connect."""
        return {
            "issuer": self.issuer,
            "jwks_uri": keys_url,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def _mint(self, email: str, audience: str, now_s: int) -> str:
        from rollforward.local.cloudtasks.delivery.signing_key import base64url

        subject = int.from_bytes(hashlib.sha256(email.encode()).digest()[:8])
        claims = {
            "iss": self.issuer,
            "aud": audience,
            "azp": str(subject),
            "sub": str(subject),
            "email": email,
            "email_verified": True,
            "iat": now_s,
            "exp": now_s + LIFETIME_S,
        }
        parts = ({"alg": "RS256", "kid": self.key_id, "typ": "JWT"}, claims)
        signed = ".".join(
            base64url(json.dumps(part, separators=(",", ":")).encode()) for part in parts
        )
        return f"{signed}.{base64url(self._key.signature(signed.encode()))}"
