"""OIDC tokens for HTTP targets, signed with a key of our own.

A handler checks them exactly as it checks Google's, against other
certificates: certs() has the form of www.googleapis.com/oauth2/v1/certs,
jwks() that of /oauth2/v3/certs.

Source: cloud.google.com/tasks/docs/creating-http-target-tasks#token
"""

import base64
import datetime
import hashlib
import json
from collections.abc import Callable
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

LIFETIME_S = 3600
# A token is minted anew when it is older than this: minting costs about a
# millisecond, and a handler must still get a token that is good for long.
_REUSE_S = 300
_MAX_CACHED = 1000
_CERT_DAYS = 3650


def new_key() -> bytes:
    """Return a new RSA key as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


class TokenIssuer:
    """Mints tokens for service accounts that exist in name only.

    Args:
        pem: The private key.
        issuer: The `iss` claim.
        real_now: The time other programs see: a handler does not know of a
            clock that was advanced, and refuses a token from the future.
    """

    def __init__(self, pem: bytes, issuer: str, real_now: Callable[[], float]) -> None:
        # Our own key needs no proof of its primes, which takes longer than the rest of a start.
        key = serialization.load_pem_private_key(
            pem, password=None, unsafe_skip_rsa_key_validation=True
        )
        if not isinstance(key, rsa.RSAPrivateKey):
            raise TypeError("tokens are signed with an RSA key")
        self.issuer = issuer
        self._key = key
        self._real_now = real_now
        self._cache: dict[tuple[str, str], tuple[float, str]] = {}
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.key_id = hashlib.sha256(public).hexdigest()[:40]

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
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Cloud Tasks emulator")])
        start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(1)
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=_CERT_DAYS))
            .sign(self._key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        return {self.key_id: pem.decode()}

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        """Return the public key as a JSON web key set."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "alg": "RS256",
            "use": "sig",
            "kid": self.key_id,
            "n": _base64url(numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8)),
            "e": _base64url(numbers.e.to_bytes(3)),
        }
        return {"keys": [key]}

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
        header = {"alg": "RS256", "kid": self.key_id, "typ": "JWT"}
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
        signed = f"{_json64(header)}.{_json64(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64url(signature)}"


def _json64(value: dict[str, Any]) -> str:
    return _base64url(json.dumps(value, separators=(",", ":")).encode())


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
