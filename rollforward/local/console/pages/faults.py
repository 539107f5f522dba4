"""The faults of queues, workers and mail: switched on and off."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from rollforward.local.cloudtasks.delivery.faults import KINDS
from rollforward.local.console.fault_words import FAULTS
from rollforward.local.console.frame import Route, Section, back
from rollforward.local.console.reading import work
from rollforward.local.errors import PlatformError
from rollforward.local.services.mail import MailFaults
from rollforward.look.lists import parse_integer

MAX_PATH_CHARS = 500
MAX_HITS = 10**9
_SECONDS_OF = ("delay", "kill_worker")
_NO_MAIL_FAULTS = MailFaults()


class Faults(Section):
    """The faults of queues, workers and mail: switched on and off."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/faults", self.faults),
            ("POST", "/faults", self.add_fault),
            ("POST", "/faults/remove", self.remove_fault),
            ("POST", "/faults/mail", self.set_mail_faults),
            ("POST", "/faults/mail/remove", self.remove_mail_fault),
            ("POST", "/faults/kill-worker", self.kill_worker),
        ]

    async def faults(self, request: web.Request) -> web.Response:
        """Show the faults that are on, and the forms for more."""
        return self._faults_page(request)

    async def add_fault(self, request: web.Request) -> web.Response:
        """Switch a fault on."""
        fields = await _fields(request)
        try:
            rule = _rule(fields, {row["id"] for row in work.queue_rows(self.engine)})
            with self.engine.lock:
                self.engine.faults.add(**rule)
        except ValueError as error:
            return self._faults_page(request, task_problem=str(error), task_fields=fields)
        raise await back(request, "/faults", "fault-on")

    async def remove_fault(self, request: web.Request) -> web.Response:
        """Switch a fault off."""
        rule = str((await request.post()).get("rule", ""))
        with self.engine.lock:
            self.engine.faults.remove(rule)
        raise await back(request, "/faults", "fault-off")

    async def set_mail_faults(self, request: web.Request) -> web.Response:
        """Change how the mail server misbehaves."""
        fields = await _fields(request)
        try:
            percent = _decimal(fields.get("percent", ""), "Share of messages", limit=100)
            latency_ms = _decimal(
                fields.get("latency_ms", ""), "Time for each message", limit=60000
            )
            refused = tuple(fields.get("refused", "").replace(",", " ").split())
            self.platform.mail.set_faults(
                temporary_rate=percent / 100, latency_ms=latency_ms, refused=refused
            )
        except (ValueError, PlatformError) as error:
            return self._faults_page(request, mail_problem=str(error), mail_fields=fields)
        raise await back(request, "/faults", "mail-faults")

    async def remove_mail_fault(self, request: web.Request) -> web.Response:
        """Take one fault of the mail server back."""
        name = (await _fields(request)).get("rule", "")
        if name in MailFaults.__dataclass_fields__:
            usual = getattr(_NO_MAIL_FAULTS, name)
            self.platform.mail.faults = replace(self.platform.mail.faults, **{name: usual})
        raise await back(request, "/faults", "fault-off")

    async def kill_worker(self, request: web.Request) -> web.Response:
        """Kill one of the app's workers."""
        notice = "killed" if self.platform.kill_worker() is not None else "no-worker"
        raise await back(request, "/faults", notice)

    def _faults_page(
        self,
        request: web.Request,
        *,
        task_problem: str = "",
        mail_problem: str = "",
        task_fields: Mapping[str, str] | None = None,
        mail_fields: Mapping[str, str] | None = None,
    ) -> web.Response:
        """Show the page; what was typed into a form that was refused stays in it."""
        with self.engine.lock:
            rules = self.engine.faults.all()
        mail = self.platform.mail.faults
        page = self.page(
            request,
            "faults.html",
            rules=rules,
            mail_rules=_mail_rules(mail),
            kinds=[(kind, FAULTS[kind]) for kind in KINDS],
            queue_ids=[row["id"] for row in work.queue_rows(self.engine)],
            task_problem=task_problem,
            mail_problem=mail_problem,
            typed={"kind": "error", "percent": "10", **(task_fields or {})},
            mail_typed={
                "percent": f"{mail.temporary_rate * 100:g}",
                "refused": "\n".join(mail.refused),
                "latency_ms": f"{mail.latency_ms:g}",
                **(mail_fields or {}),
            },
        )
        if task_problem or mail_problem:
            page.set_status(400)
        return page


def _mail_rules(mail: MailFaults) -> list[tuple[str, str, str]]:
    """Return the faults of the mail server that are on: field, name, and how much."""
    rules = []
    if mail.temporary_rate:
        share = f"{mail.temporary_rate * 100:g} % of messages are answered “try again later” (451)"
        rules.append(("temporary_rate", "Put off", share))
    if mail.refused:
        rules.append(("refused", "Refused addresses", ", ".join(mail.refused) + " (550)"))
    if mail.latency_ms:
        rules.append(("latency_ms", "Latency", f"{mail.latency_ms:g} ms for each message"))
    return rules


async def _fields(request: web.Request) -> dict[str, str]:
    return {key: str(value).strip() for key, value in (await request.post()).items()}


def _rule(fields: Mapping[str, str], queue_ids: set[str]) -> dict[str, Any]:
    """Return a fault rule from the form's fields.

    Raises:
        ValueError: a field cannot be; the text names it as the form does.
    """
    kind, queue = fields.get("kind", ""), fields.get("queue", "")
    if kind not in KINDS:
        raise ValueError(f"Fault: there is no fault “{kind}”.")
    if queue and queue not in queue_ids:
        raise ValueError(f"Queue: there is no queue “{queue}”.")
    share = _decimal(fields.get("percent", ""), "Share of deliveries", limit=100)
    if not share:
        raise ValueError("Share of deliveries: more than 0 %. To end a fault, switch it off.")
    path = fields.get("path", "")
    if len(path) > MAX_PATH_CHARS:
        raise ValueError(f"Path contains: at most {MAX_PATH_CHARS} characters, not {len(path)}.")
    rule: dict[str, Any] = {"kind": kind, "rate": share / 100, "queue": queue, "path": path}
    if fields.get("param"):
        if kind not in _SECONDS_OF:
            names = " and ".join(FAULTS[fault].name for fault in _SECONDS_OF)
            raise ValueError(f"Seconds: only for {names}.")
        rule["param"] = _decimal(fields["param"], "Seconds", limit=86400)
    if count := fields.get("max_count"):
        if (number := parse_integer(count, MAX_HITS)) is None:
            raise ValueError(f"Maximum hits: a whole number from 1 to {MAX_HITS:,}, not “{count}”.")
        rule["max_count"] = number
    return rule


def _decimal(text: str, label: str, *, limit: float) -> float:
    if not text:
        raise ValueError(f"{label}: a number from 0 to {limit:g} is needed, it was empty.")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{label}: a number, not “{text}”.") from None
    if not 0 <= value <= limit:
        raise ValueError(f"{label}: a number from 0 to {limit:g}, not “{text}”.")
    return value
