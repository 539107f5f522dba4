"""The demo app's mail relay behind a plan of faults."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage

from pipelines.invitations.mail import Connection, Mailer
from rollforward.tasks import Unavailable
from rollforward.testing.injection import FaultPlan


@dataclass(frozen=True)
class FaultyMailer:
    """A mail relay whose sendings a plan counts and breaks."""

    mailer: Mailer
    plan: FaultPlan

    @property
    def sender(self) -> str:
        return self.mailer.sender

    @contextlib.contextmanager
    def connect(self) -> Iterator[Connection]:
        self.plan.check_alive()
        with self.mailer.connect() as line:
            yield _FaultyLine(line, self.plan)


@dataclass(frozen=True)
class _FaultyLine:
    line: Connection
    plan: FaultPlan

    def send(self, mail: EmailMessage) -> None:
        self.plan.around("send", lambda: self.line.send(mail), lambda code: Unavailable(code.name))
