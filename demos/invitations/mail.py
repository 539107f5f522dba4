"""Mail by SMTP: to the local platform's server, or to any relay.

One connection serves a page of mails. What the relay says decides the error: a 5xx answer
is for good, a 4xx answer asks to come again, and a relay that does not answer at all is a
service out of order.
"""

from __future__ import annotations

import contextlib
import smtplib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Protocol

from pipelines.tasks import Unavailable

# Of each answer, not of a whole mail: a mail takes about four of them.
ANSWER_TIMEOUT_S = 5.0


class Error(Exception):
    """Base class for errors of this module."""


class RefusedError(Error):
    """The relay will never take this mail."""


class DeferredError(Error):
    """The relay does not take this mail now."""


class Connection(Protocol):
    """An open line to the relay."""

    def send(self, mail: EmailMessage) -> None:
        """Hand one mail over; returns when the relay has accepted it.

        Raises:
            RefusedError: never try again.
            DeferredError: try again later.
            Unavailable: the relay is out of order; nothing is known of this mail.
        """
        ...


class Mailer(Protocol):
    """Opens lines to the relay."""

    @property
    def sender(self) -> str:
        """Who the mails are from."""
        ...

    def connect(self) -> contextlib.AbstractContextManager[Connection]: ...


@dataclass(frozen=True)
class SmtpMailer:
    """A Mailer for an SMTP relay; with starttls it must prove its name first."""

    host: str
    port: int
    sender: str
    user: str = ""
    password: str = ""
    starttls: bool = False

    @contextlib.contextmanager
    def connect(self) -> Iterator[Connection]:
        try:
            client = smtplib.SMTP(self.host, self.port, timeout=ANSWER_TIMEOUT_S)
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
                # Python's own default here verifies nothing: anybody could answer as the relay.
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
            raise _answer(code, text) from error
        except smtplib.SMTPServerDisconnected as error:
            raise Unavailable(f"mail relay hung up: {error}") from error
        except smtplib.SMTPResponseException as error:
            raise _answer(error.smtp_code, error.smtp_error) from error
        except (OSError, smtplib.SMTPException) as error:
            raise Unavailable(f"mail relay: {error}") from error


def _answer(code: int, text: bytes | str) -> Exception:
    """Return the error that an SMTP answer stands for; a garbled one says nothing.

    >>> _answer(451, b"busy")
    DeferredError('451 busy')
    """
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    said = f"{code} {words}"[:300]
    if 400 <= code < 500:
        return DeferredError(said)
    return RefusedError(said) if 500 <= code < 600 else Unavailable(f"mail relay: {said}")
