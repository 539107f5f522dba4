"""The faults of queues, workers and mail: switched on and off."""

from typing import Any

from aiohttp import web

from devserver.cloudtasks.faults import KINDS, FaultRuleError
from devserver.console import work
from devserver.console.pages.frame import Route, Section, back
from devserver.errors import DevserverError

FAULT_WORDS = {
    "duplicate": "A task that succeeded is delivered once more",
    "overlap": "A task is delivered twice at the same time",
    "delay": "A dispatch is held back by some seconds",
    "reorder": "Any due task may come next, not the oldest",
    "lose_response": "The handler runs, but its answer is lost",
    "error": "The answer is 500, and the handler never runs",
    "kill_worker": "The worker is killed some seconds into the attempt",
}


class Faults(Section):
    """The faults of queues, workers and mail: switched on and off."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/faults", self.faults),
            ("POST", "/faults", self.add_fault),
            ("POST", "/faults/remove", self.remove_fault),
            ("POST", "/faults/mail", self.set_mail_faults),
            ("POST", "/faults/kill-worker", self.kill_worker),
        ]

    async def faults(self, request: web.Request) -> web.Response:
        """Show the faults that are on, and the forms for more."""
        return self._faults_page(request, "")

    async def add_fault(self, request: web.Request) -> web.Response:
        """Switch a fault on."""
        fields = {key: str(value).strip() for key, value in (await request.post()).items()}
        try:
            rule = _rule(fields)
            with self.engine.lock:
                self.engine.faults.add(**rule)
        except ValueError as error:
            return self._faults_page(request, str(error))
        raise await back(request, "/faults", "fault-on")

    async def remove_fault(self, request: web.Request) -> web.Response:
        """Switch a fault off."""
        rule = str((await request.post()).get("rule", ""))
        with self.engine.lock:
            self.engine.faults.remove(rule)
        raise await back(request, "/faults", "fault-off")

    async def set_mail_faults(self, request: web.Request) -> web.Response:
        """Change how the mail server misbehaves."""
        fields = await request.post()
        try:
            percent, latency_ms = (
                _decimal(str(fields.get(name, "")), label)
                for name, label in (("percent", "Temporary errors"), ("latency_ms", "Latency"))
            )
            refused = tuple(str(fields.get("refused", "")).replace(",", " ").split())
            self.platform.mail.set_faults(
                temporary_rate=percent / 100, latency_ms=latency_ms, refused=refused
            )
        except (ValueError, DevserverError) as error:
            return self._faults_page(request, str(error))
        raise await back(request, "/faults", "mail-faults")

    async def kill_worker(self, request: web.Request) -> web.Response:
        """Kill one of the app's workers."""
        notice = "killed" if self.platform.kill_worker() is not None else "no-worker"
        raise await back(request, "/faults", notice)

    def _faults_page(self, request: web.Request, problem: str) -> web.Response:
        with self.engine.lock:
            rules = self.engine.faults.all()
        page = self.page(
            request,
            "faults.html",
            rules=rules,
            kinds=[(kind, FAULT_WORDS.get(kind, kind)) for kind in KINDS],
            mail=self.platform.mail.faults,
            queue_ids=[row["id"] for row in work.queue_rows(self.engine)],
            problem=problem,
        )
        page.set_status(400 if problem else 200)
        return page


def _rule(fields: dict[str, str]) -> dict[str, Any]:
    """Return a fault rule from the form's fields.

    Raises:
        ValueError: a field is no number.
    """
    rule: dict[str, Any] = {"kind": fields.get("kind", "")}
    rule["rate"] = _decimal(fields.get("percent", ""), "Share") / 100
    rule |= {name: fields.get(name, "") for name in ("queue", "path")}
    if fields.get("param"):
        rule["param"] = _decimal(fields["param"], "Seconds")
    if fields.get("max_count"):
        if not fields["max_count"].isdecimal():
            raise FaultRuleError("At most: a whole number.")
        rule["max_count"] = int(fields["max_count"])
    return rule


def _decimal(text: str, label: str) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        raise ValueError(f"{label}: a number, not “{text}”.") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"{label}: 0 or more.")
    return value
