"""Mail to a relay over TLS: whom the password is told."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pipelines.invitations.mail import SmtpMailer
from rollforward.local.system.ports import free_port
from rollforward.tasks.errors import Unavailable

HOST, USER, PASSWORD = "127.0.0.1", "user", "only-for-the-relay"


class Relay:
    """What a relay was told."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.passwords: list[bytes] = []
        self.mails = 0
        self.controller = Controller(
            self,
            hostname=HOST,
            port=free_port(),
            tls_context=context,
            authenticator=self._note,
            auth_require_tls=False,
        )

    def _note(self, server: Any, session: Any, envelope: Any, mechanism: Any, data: Any) -> Any:
        self.passwords.append(data.password)
        return AuthResult(success=True)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails += 1
        return "250 taken"

    @property
    def mailer(self) -> SmtpMailer:
        port = self.controller.port
        return SmtpMailer(HOST, port, "a@example.org", USER, PASSWORD, starttls=True)


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A relay whose certificate this machine trusts, or does not."""

    @contextmanager
    def running(name: str, *, is_trusted: bool) -> Iterator[Relay]:
        certificate = tmp_path / "relay.pem"
        certificate.write_bytes(_self_signed(name))
        if is_trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        relay = Relay(context)
        relay.controller.start()
        yield relay
        relay.controller.stop()

    return running


def _self_signed(name: str) -> bytes:
    """Return a key and a certificate for an address, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))]), False
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def letter() -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", "Hi"
    message.set_content("Hello.")
    return message


def test_a_relay_with_a_good_certificate_gets_password_and_mail(relay: Any) -> None:
    """A relay that proves its name, by a signer that this machine trusts, is used."""
    with relay(HOST, is_trusted=True) as server, server.mailer.connect() as line:
        line.send(letter())

    assert (server.passwords, server.mails) == ([PASSWORD.encode()], 1)


@pytest.mark.parametrize(
    ("name", "is_trusted"),
    [(HOST, False), ("127.0.0.2", True)],
    ids=["unknown-signer", "another-name"],
)
def test_a_relay_that_does_not_prove_its_name_is_told_nothing(
    relay: Any, name: str, is_trusted: bool
) -> None:
    """Whoever answers in the relay's place gets no password and no mail; it counts as unwell."""
    with (
        relay(name, is_trusted=is_trusted) as server,
        pytest.raises(Unavailable, match="certificate verify failed"),
        server.mailer.connect(),
    ):
        pytest.fail("it was let in")

    assert (server.passwords, server.mails) == ([], 0)
