"""An SMTP server that stores messages instead of delivering them.

It runs in a thread of its own, so that tests and the dev server use it alike. Its storage is
bounded: the oldest messages go first. It can also fail on demand (`MailFaults`), because mail is
the classic effect outside the database. An answer may be late, temporary (451) or final (550).

A message counts as received once the server has answered 250. As with any
mail server, a client that loses that answer may send the message again.
"""

import asyncio
import email
import email.policy
import logging
import random
import sqlite3
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from email.errors import InvalidHeaderDefect
from email.header import decode_header, make_header
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session

from rollforward.local.errors import PlatformError, PortTakenError
from rollforward.local.system import ports

KEPT_MESSAGES = 20_000
MESSAGE_LIMIT_BYTES = 10_000_000
_START_S = 10.0

log = logging.getLogger(__name__)

_QUIET = {"is_quiet": True}  # For the console's page Logs, not for the terminal.

_SCHEMA = """
CREATE TABLE IF NOT EXISTS message (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  received REAL NOT NULL,
  sender TEXT NOT NULL,
  recipients TEXT NOT NULL,
  subject TEXT NOT NULL,
  message_id TEXT NOT NULL,
  raw BLOB NOT NULL
)"""
_COLUMNS = "id, received, sender, recipients, subject, message_id, raw"


class BadFaultsError(PlatformError):
    """A fault setting is out of its range."""


@dataclass(frozen=True)
class MailFaults:
    """The faults of the server; by default none."""

    temporary_rate: float = 0.0  # share of messages answered 451, 0 to 1
    refused: tuple[str, ...] = ()  # addresses answered 550
    latency_ms: float = 0.0  # how long each message takes

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        if not 0 <= self.temporary_rate <= 1:
            raise BadFaultsError("temporary_rate is between 0 and 1")
        if not 0 <= self.latency_ms <= 60_000:
            raise BadFaultsError("latency_ms is between 0 and 60000")

    @property
    def on(self) -> bool:
        """True if any fault is switched on."""
        return self != MailFaults()


@dataclass(frozen=True)
class ReceivedMail:
    """One message as it came in."""

    id: int
    received: float  # seconds since the epoch
    sender: str
    recipients: tuple[str, ...]
    subject: str
    message_id: str
    raw: bytes

    def parsed(self) -> EmailMessage:
        """Return the message with its headers and parts."""
        return email.message_from_bytes(self.raw, policy=email.policy.default)

    @property
    def text(self) -> str:
        """The plain text of the message, or its HTML source if it has no other."""
        try:
            body = self.parsed().get_body(preferencelist=("plain", "html"))
            return "" if body is None else str(body.get_content())
        except Exception:
            return self.raw.decode("utf-8", "replace")

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers in their order, decoded; a malformed one as it came."""
        message = self.parsed()
        return [(name, _parsed(message, name, value)) for name, value in message.raw_items()]


class MailStore:
    """The kept messages, in a SQLite file or in memory; safe to call from any thread."""

    def __init__(self, path: Path | None = None, *, limit: int = KEPT_MESSAGES) -> None:
        """Open the store.

        Args:
            path: The file; None keeps the messages in memory.
            limit: The oldest messages beyond this many are dropped.

        Raises:
            PlatformError: the file is damaged, or the disk is full.
        """
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.limit = limit
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path or ":memory:", check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=OFF")  # a power cut may cost some demo mail
            with self._lock, self._db:
                self._db.execute(_SCHEMA)
        except sqlite3.Error as error:
            self._db.close()
            raise PlatformError(
                f"{path} cannot be used: {error}. If the disk has room, move that file away to "
                "start without its mails."
            ) from error

    def add(self, sender: str, recipients: Iterable[str], raw: bytes) -> None:
        """Keep a message that was just received."""
        head = email.message_from_bytes(raw.split(b"\r\n\r\n", 1)[0] + b"\r\n\r\n")
        subject = _decoded(str(head.get("Subject", "")))
        message_id = str(head.get("Message-ID", ""))
        row = (time.time(), sender, "\n".join(recipients), subject, message_id, raw)
        with self._lock, self._db:
            inserted = self._db.execute(
                "INSERT INTO message (received, sender, recipients, subject, message_id, raw)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                row,
            ).lastrowid
            self._db.execute("DELETE FROM message WHERE id <= ?", ((inserted or 0) - self.limit,))

    def count(self, text: str = "") -> int:
        """Return how many messages match the text (all, without one)."""
        where, arguments = _matching(text)
        with self._lock:
            row = self._db.execute(f"SELECT count(*) FROM message{where}", arguments).fetchone()
        return int(row[0])

    def duplicates(self, text: str = "", *, since: float = 0.0, until: float = 1e12) -> int:
        """Return how many messages came again: with the Message-ID of one before them.

        Args:
            since, until: Only of messages received then, in seconds since the epoch.
        """
        where, arguments = _matching(text)
        where += (" AND" if where else " WHERE") + " received BETWEEN ? AND ? AND message_id != ''"
        query = f"SELECT count(*) - count(DISTINCT message_id) FROM message{where}"
        with self._lock:
            row = self._db.execute(query, [*arguments, since, until]).fetchone()
        return int(row[0])

    def list(
        self, *, text: str = "", before_id: int | None = None, limit: int | None = 50
    ) -> "list[ReceivedMail]":
        """Return messages, newest first.

        Args:
            text: Only those with this in subject, sender or recipients.
            before_id: Only those older than this one, for paging.
            limit: At most this many; None for all.
        """
        where, arguments = _matching(text)
        if before_id is not None:
            where += (" AND" if where else " WHERE") + " id < ?"
            arguments.append(before_id)
        query = f"SELECT {_COLUMNS} FROM message{where} ORDER BY id DESC LIMIT ?"
        with self._lock:
            rows = self._db.execute(query, [*arguments, -1 if limit is None else limit]).fetchall()
        return [_received(row) for row in rows]

    def get(self, id: int) -> ReceivedMail | None:
        """Return one message, or None if it does not exist."""
        with self._lock:
            query = f"SELECT {_COLUMNS} FROM message WHERE id = ?"
            row = self._db.execute(query, (id,)).fetchone()
        return None if row is None else _received(row)

    def clear(self) -> None:
        """Forget all messages."""
        with self._lock, self._db:
            self._db.execute("DELETE FROM message")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


class MailServer:
    """The SMTP server in its thread, the messages it has, and its faults."""

    def __init__(
        self, *, port: int = 0, store: MailStore | None = None, seed: int | None = None
    ) -> None:
        """Describe the server; it listens after start().

        Args:
            port: The port to listen on; 0 takes a free port.
            store: Keeps the messages; None keeps them in memory.
            seed: Makes the choice of 451 answers repeatable.
        """
        self.port = port
        self.store = store or MailStore()
        self.faults = MailFaults()
        self._random = random.Random(seed)  # not for secrets
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._error: OSError | None = None

    @property
    def address(self) -> str:
        """host:port, for SMTP_HOST."""
        return f"{ports.LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start the thread and return when the server listens.

        Raises:
            PortTakenError: another program listens there.
        """
        self._thread = threading.Thread(target=self._run, name="mail", daemon=True)
        self._thread.start()
        self._started.wait(_START_S)
        if self._error is not None:
            self._thread.join()
            raise PortTakenError(f"The mail server cannot listen: {self._error}. Set MAIL_PORT.")

    def stop(self) -> None:
        """Close the connections, end the thread and close the store."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout=10)
        self.store.close()

    def messages(self) -> list[ReceivedMail]:
        """Return all messages, newest first."""
        return self.store.list(limit=None)

    def count(self) -> int:
        """Return how many messages there are."""
        return self.store.count()

    def get(self, id: int) -> ReceivedMail | None:
        """Return one message, or None if it does not exist."""
        return self.store.get(id)

    def clear(self) -> None:
        """Forget all messages."""
        self.store.clear()

    def set_faults(self, **changes: Any) -> MailFaults:
        """Change some fault settings and return all of them.

        Raises:
            BadFaultsError: a value is out of its range; nothing has changed.
        """
        self.faults = replace(self.faults, **changes)
        return self.faults

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._error = error
            self._started.set()

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = await loop.create_server(self._protocol, ports.LOOPBACK, self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stopping.wait()
        # Open connections end with the loop: a client sees them close.
        server.close()

    def _protocol(self) -> SMTP:
        # A host name given here spares a look-up that may take seconds.
        return SMTP(
            _Handler(self),
            data_size_limit=MESSAGE_LIMIT_BYTES,
            enable_SMTPUTF8=True,
            hostname="localhost",
            ident="Rollforward mail catcher",
            loop=self._loop,
        )


class _Handler:
    """The handler that aiosmtpd calls for each command."""

    def __init__(self, server: MailServer) -> None:
        self.server = server

    async def handle_RCPT(  # aiosmtpd finds its hooks by these names
        self, smtp: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Accept or refuse one recipient."""
        if address.lower() in {refused.lower() for refused in self.server.faults.refused}:
            log.warning("550 to %s: refused", address, extra=_QUIET)
            return "550 5.1.1 No such mailbox"
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 OK"

    async def handle_DATA(self, smtp: SMTP, session: Session, envelope: Envelope) -> str:
        """Keep one message, or pretend to be unwell."""
        faults = self.server.faults
        if faults.latency_ms:
            await asyncio.sleep(faults.latency_ms / 1000)
        if self.server._random.random() < faults.temporary_rate:
            log.warning("451 to %s: put off", ", ".join(envelope.rcpt_tos), extra=_QUIET)
            return "451 4.3.0 Try again later"
        content = envelope.content or b""
        raw = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        try:
            self.server.store.add(envelope.mail_from or "", envelope.rcpt_tos, raw)
        except sqlite3.OperationalError as error:  # For aiosmtpd it would be a refusal for good.
            recipients = ", ".join(envelope.rcpt_tos)
            log.warning("452 to %s: %s; is the disk full?", recipients, error, extra=_QUIET)
            return "452 4.3.1 Insufficient system storage"
        log.info("250 to %s: received", ", ".join(envelope.rcpt_tos), extra=_QUIET)
        return "250 OK"


def _parsed(message: EmailMessage, name: str, value: str) -> str:
    try:
        parsed = message.policy.header_fetch_parse(name, value)
    except Exception:
        return value
    # From Python 3.13 on the parser makes "<>" of an address that it raised for before.
    is_lossy = any(isinstance(one, InvalidHeaderDefect) for one in getattr(parsed, "defects", ()))
    return value if is_lossy else str(parsed)


def _decoded(header: str) -> str:
    """Return a header as people read it; what cannot be decoded stays as it is."""
    try:
        return str(make_header(decode_header(header)))
    except (LookupError, ValueError, UnicodeError):
        return header


def _matching(text: str) -> tuple[str, list[Any]]:
    if not text:
        return "", []
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    clauses = [f"{column} LIKE ? ESCAPE '\\'" for column in ("subject", "sender", "recipients")]
    return f" WHERE ({' OR '.join(clauses)})", [f"%{escaped}%"] * 3


def _received(row: tuple[Any, ...]) -> ReceivedMail:
    id, received, sender, recipients, subject, message_id, raw = row
    addresses = tuple(recipients.split("\n")) if recipients else ()
    return ReceivedMail(id, received, sender, addresses, subject, message_id, raw)
