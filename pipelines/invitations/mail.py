"""Mail by SMTP: to the local platform's server, or to any relay.

One connection serves a page of mails. The relay's reply decides the error: a 5xx reply is
permanent, a 4xx reply asks for a retry, and a relay without a reply is unavailable.
"""

from __future__ import annotations

import contextlib
import smtplib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Protocol

from rollforward.tasks import Unavailable

# Timeout of each reply, not of a whole mail: a mail takes about four replies.
REPLY_TIMEOUT_S = 5.0


class Error(Exception):
    """Base class for errors of this module."""


class RefusedError(Error):
    """The relay will never take this mail."""


class DeferredError(Error):
    """The relay does not take this mail now."""


class Connection(Protocol):
    """An open connection to the relay."""

    def send(self, mail: EmailMessage) -> None:
        """Hand one mail over; returns when the relay has accepted it.

        Raises:
            RefusedError: never try again.
            DeferredError: try again later.
            Unavailable: the relay does not reply; the outcome of this mail is unknown.
        """
        ...


class Mailer(Protocol):
    """Opens connections to the relay."""

    @property
    def sender(self) -> str:
        """Sender of the mails."""
        ...

    def connect(self) -> contextlib.AbstractContextManager[Connection]: ...


@dataclass(frozen=True)
class SmtpMailer:
    """A Mailer for an SMTP relay; with starttls the relay must prove its name first."""

    host: str
    port: int
    sender: str
    user: str = ""
    password: str = ""
    starttls: bool = False

    @contextlib.contextmanager
    def connect(self) -> Iterator[Connection]:
        try:
            client = smtplib.SMTP(self.host, self.port, timeout=REPLY_TIMEOUT_S)
        except (OSError, smtplib.SMTPException) as error:
            raise Unavailable(f"mail relay {self.host}:{self.port}: {error}") from error
        try:
            self._greet(client)
            yield _SmtpConnection(client)
        finally:
            with contextlib.suppress(OSError, smtplib.SMTPException):
                client.quit()

    def _greet(self, client: smtplib.SMTP) -> None:
        try:
            if self.starttls:
                # Python's own default here verifies nothing: any host could pose as the relay.
                client.starttls(context=ssl.create_default_context())
            if self.user:
                client.login(self.user, self.password)
        except (OSError, smtplib.SMTPException) as error:
            raise Unavailable(f"mail relay {self.host}:{self.port}: {error}") from error


@dataclass(frozen=True)
class _SmtpConnection:
    client: smtplib.SMTP

    def send(self, mail: EmailMessage) -> None:
        try:
            self.client.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            code, text = next(iter(error.recipients.values()))
            raise _error_of(code, text) from error
        except smtplib.SMTPServerDisconnected as error:
            raise Unavailable(f"mail relay hung up: {error}") from error
        except smtplib.SMTPResponseException as error:
            raise _error_of(error.smtp_code, error.smtp_error) from error
        except (OSError, smtplib.SMTPException) as error:
            raise Unavailable(f"mail relay: {error}") from error


def _error_of(code: int, text: bytes | str) -> Exception:
    """Return the error of an SMTP reply; a garbled one counts as no reply.

    >>> _error_of(451, b"busy")
    DeferredError('451 busy')
    """
    detail = text.decode(errors="replace") if isinstance(text, bytes) else text
    message = f"{code} {detail}"[:300]
    if 400 <= code < 500:
        return DeferredError(message)
    return RefusedError(message) if 500 <= code < 600 else Unavailable(f"mail relay: {message}")
