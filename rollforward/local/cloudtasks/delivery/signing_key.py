"""The RSA key that signs tokens, and the forms in which it is published.

Only tokens load this module: its cryptography takes longer to load than the engine.
"""

import base64
import datetime
import functools
import hashlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

_CERT_DAYS = 3650


def new_key() -> bytes:
    """Return a new RSA key as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@functools.cache
def key_of_this_process() -> bytes:
    """Return one key for all stores in memory: making one is slow."""
    return new_key()


class SigningKey:
    """A private key.

    Args:
        pem: The key as `new_key` returned it.
    """

    def __init__(self, pem: bytes) -> None:
        # Our own key needs no proof of its primes, which takes longer than the rest of a start.
        key = serialization.load_pem_private_key(
            pem, password=None, unsafe_skip_rsa_key_validation=True
        )
        if not isinstance(key, rsa.RSAPrivateKey):
            raise TypeError("tokens are signed with an RSA key")
        self._key = key
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.id = hashlib.sha256(public).hexdigest()[:40]

    def signature(self, signed: bytes) -> bytes:
        """Return the signature of bytes, by RS256."""
        return self._key.sign(signed, padding.PKCS1v15(), hashes.SHA256())

    def certificate(self) -> str:
        """Return a certificate of the public key, in PEM."""
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
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    def web_key(self) -> dict[str, str]:
        """Return the public key as a JSON web key."""
        numbers = self._key.public_key().public_numbers()
        return {
            "kty": "RSA",
            "alg": "RS256",
            "use": "sig",
            "kid": self.id,
            "n": base64url(numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8)),
            "e": base64url(numbers.e.to_bytes(3)),
        }


def base64url(raw: bytes) -> str:
    """Return bytes in the alphabet of URLs, without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
