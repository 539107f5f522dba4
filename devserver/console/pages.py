"""The console's pages: each a GET that shows and POSTs that act and redirect back.

| page      | shows                                     | acts                        |
| /         | services, load, what needs attention      |                             |
| /queues   | state, load and limits of each queue      | pause, resume, purge        |
| /tasks    | tasks of any state, one with its attempts | run now, retry, delete      |
| /outbox   | tasks committed and not created yet       | sweep now                   |
| /dead     | what the app parked                       | replay                      |
| /mail     | received mail                             | clear                       |
| /cron     | schedules and last results                | run now, pause, resume      |
| /faults   | fault rules, mail faults                  | add, remove, kill a worker  |
"""

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from aiohttp import web
from google.api_core.exceptions import GoogleAPIError

from devserver.cloudtasks import views
from devserver.cloudtasks.errors import Refused
from devserver.cloudtasks.faults import KINDS, FaultRuleError
from devserver.console import words, work
from devserver.console.dead_tasks import MAX_NAME_BYTES, PAGE_DEAD, DeadTask, enqueue_replay
from devserver.console.outbox import METRICS_PATH, SWEEP_URL, Shown, Waiting, relayed_per_s
from devserver.console.words import counted
from devserver.console.work import Attention
from devserver.errors import DevserverError

if TYPE_CHECKING:
    from devserver.console.server import Console

_PAGE_MAILS = 50
_PATIENCE_S = 2.0
_AILMENTS = {"stopped": "has stopped", "silent": "does not answer"}

# What a page says after an action: the address holds the key, never the text.
NOTICES = {
    "paused": "Paused. Nothing is dispatched until it is resumed.",
    "resumed": "Resumed.",
    "purged": "Purged: all waiting tasks are gone.",
    "ran": "Dispatched now, whatever the queue's rate and load.",
    "retried": "Due again at once.",
    "deleted": "Deleted.",
    "replayed": "Replay enqueued: the app runs the task again.",
    "swept": "SweepResult: what had waited for 15 seconds is being created.",
    "not-swept": "The sweep failed: see its last result on the page Cron.",
    "cleared": "All mail is gone.",
    "fault-on": "The fault is on.",
    "fault-off": "The fault is off.",
    "mail-faults": "The mail server behaves as set.",
    "killed": "One worker was killed. gunicorn starts another.",
    "no-worker": "The app has no worker now: nothing was killed.",
    "cron-ok": "The job ran well.",
    "cron-failed": "The job ran and failed: see its last result.",
}

FAULT_WORDS = {
    "duplicate": "A task that succeeded is delivered once more",
    "overlap": "A task is delivered twice at the same time",
    "delay": "A dispatch is held back by some seconds",
    "reorder": "Any due task may come next, not the oldest",
    "lose_response": "The handler runs, but its answer is lost",
    "error": "The answer is 500, and the handler never runs",
    "kill_worker": "The worker is killed some seconds into the attempt",
}

# No control characters: a browser leaves out a tab, and the next slash is another site's.
_OWN_PATH = re.compile(r"/(?![/\\])[!-~]*")

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages:
    """The handlers of the pages."""

    def __init__(self, console: "Console") -> None:
        """Serve this console."""
        self.console = console
        self.platform = console.platform
        self.engine = console.platform.tasks.engine

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/", self.overview),
            ("GET", "/queues", self.queues),
            ("POST", "/queues/{queue}/{verb:pause|resume}", self.change_queue),
            ("GET", "/queues/{queue}/purge", self.confirm_purge),
            ("POST", "/queues/{queue}/purge", self.purge),
            ("GET", "/tasks", self.tasks),
            ("GET", "/tasks/{queue}/{task}", self.task),
            ("POST", "/tasks/{queue}/{task}/{verb:run|retry|delete}", self.change_task),
            ("GET", "/outbox", self.outbox),
            ("POST", "/outbox/sweep", self.sweep_outbox),
            ("GET", "/dead", self.dead),
            ("POST", "/dead/{id}/replay", self.replay),
            ("GET", "/mail", self.mail),
            ("POST", "/mail/clear", self.clear_mail),
            ("GET", r"/mail/{id:[0-9]{1,18}}", self.one_mail),
            ("GET", "/cron", self.cron),
            ("POST", "/cron/{verb:run|pause|resume}", self.change_cron),
            ("GET", "/faults", self.faults),
            ("POST", "/faults", self.add_fault),
            ("POST", "/faults/remove", self.remove_fault),
            ("POST", "/faults/mail", self.set_mail_faults),
            ("POST", "/faults/kill-worker", self.kill_worker),
        ]
        return [web.route(method, path, self._told(handler)) for method, path, handler in table]

    # --- overview ---------------------------------------------------------

    async def overview(self, request: web.Request) -> web.Response:
        """Show services, load, and what needs attention."""
        rows = work.queue_rows(self.engine)
        dead, late = await asyncio.gather(self._dead_or_none(), self._late_or_none())
        samples = self.console.samples
        graphs = [
            ("Depth", "tasks", list(samples.depth)),
            ("Created", "per second", list(samples.created)),
            ("Ended", "per second", list(samples.ended)),
        ]
        return self._page(
            request,
            "overview.html",
            services=self.platform.services(),
            totals=work.totals(rows),
            graphs=graphs,
            dead_count=None if dead is None else len(dead),
            mail_count=self.platform.mail.count(),
            attention=self._attention(rows, dead, late),
            environment=self.platform.shell_environment(),
        )

    def _attention(
        self,
        rows: list[dict[str, Any]],
        dead: list[DeadTask] | None,
        late: list[Waiting] | None,
    ) -> list[Attention]:
        found = [
            Attention("✕", "failed", f"{service.name} {_AILMENTS[service.state]}", "/")
            for service in self.platform.services()
            if service.state in _AILMENTS
        ]
        found += work.attention(self.engine, rows)
        if dead:
            text = f"{counted(len(dead), 'dead task')} to be decided on"
            found.append(Attention("✕", "failed", text, "/dead"))
        if late:
            since = words.age(time.time() - late[0].created)
            text = f"{counted(len(late), 'row')} in the outbox, the oldest for {since}"
            found.append(Attention("◷", "retrying", text, "/outbox"))
        for job in self.platform.cron.jobs.values():
            if job.last_run is not None and not job.last_run.ok:
                text = f"Cron {job.url} failed last time"
                found.append(Attention("✕", "failed", text, "/cron"))
        if problem := self.platform.tasks.queue_yaml_problem:
            found.append(Attention("✕", "failed", f"queue.yaml not applied: {problem}", "/queues"))
        if self._rules() or self.platform.mail.faults.on:
            found.append(Attention("↻", "retrying", "Faults are switched on", "/faults"))
        return found

    # --- queues -----------------------------------------------------------

    async def queues(self, request: web.Request) -> web.Response:
        """Show every queue."""
        return self._page(request, "queues.html", rows=work.queue_rows(self.engine))

    async def change_queue(self, request: web.Request) -> web.Response:
        """Pause or resume a queue."""
        name = self._queue_name(request)
        if request.match_info["verb"] == "pause":
            self.engine.queues.pause(name)
            raise await _back(request, "/queues", "paused")
        self.engine.queues.resume(name)
        raise await _back(request, "/queues", "resumed")

    async def confirm_purge(self, request: web.Request) -> web.Response:
        """Ask for the queue's name before purging it."""
        return self._purge_page(request, "")

    async def purge(self, request: web.Request) -> web.Response:
        """Purge a queue whose name was typed."""
        typed = str((await request.post()).get("name", "")).strip()
        if typed != request.match_info["queue"]:
            return self._purge_page(request, f"You typed “{typed}”. Nothing was purged.")
        self.engine.queues.purge(self._queue_name(request))
        raise await _back(request, "/queues", "purged")

    def _purge_page(self, request: web.Request, problem: str) -> web.Response:
        queue = request.match_info["queue"]
        self.engine.queues.get(self._queue_name(request))
        row = next(row for row in work.queue_rows(self.engine) if row["id"] == queue)
        page = self._page(request, "purge.html", row=row, problem=problem)
        page.set_status(409 if problem else 200)
        return page

    def _queue_name(self, request: web.Request) -> str:
        return self.engine.place.queue_name(request.match_info["queue"])

    # --- tasks ------------------------------------------------------------

    async def tasks(self, request: web.Request) -> web.Response:
        """Show tasks, newest first, as the address filters them."""
        query = request.query
        queue, state, text = (query.get(name, "").strip() for name in ("queue", "state", "q"))
        if state and state not in views.STATES:
            raise web.HTTPBadRequest(text=f"There is no state “{state}”.")
        before = _whole(query.get("before", ""))
        rows, next_before = work.find_tasks(
            self.engine, queue=queue, state=state, text=text, before=before
        )
        kept = {"queue": queue, "state": state, "q": text}
        older = urlencode({k: v for k, v in kept.items() if v} | {"before": str(next_before)})
        return self._page(
            request,
            "tasks.html",
            rows=rows,
            older=f"/tasks?{older}" if next_before else "",
            is_first=not before,
            queue_ids=[row["id"] for row in work.queue_rows(self.engine)],
            **{"queue": queue, "state": state, "text": text},
        )

    async def task(self, request: web.Request) -> web.Response:
        """Show one task with all its attempts, the latest first."""
        shown = views.task_with_attempts_json(self.engine, self._task_name(request))
        for attempt in shown["attempts"]:
            answer = attempt["response"]
            attempt["answer"] = words.body(_bytes(answer["body"])) if answer else None
        return self._page(
            request,
            "task.html",
            task=shown,
            body=words.body(_bytes(shown["request"]["body"])),
            attempts=list(reversed(shown["attempts"])),
            is_live=shown["ended_at"] is None,
        )

    async def change_task(self, request: web.Request) -> web.Response:
        """Run, retry or delete a task."""
        name, verb = self._task_name(request), request.match_info["verb"]
        verbs: dict[str, tuple[Callable[[str], Any], str]] = {
            "run": (self.engine.tasks.run, "ran"),
            "retry": (self.engine.tasks.retry, "retried"),
            "delete": (self.engine.tasks.delete, "deleted"),
        }
        act, notice = verbs[verb]
        act(name)
        raise await _back(request, "/tasks", notice)

    def _task_name(self, request: web.Request) -> str:
        return f"{self._queue_name(request)}/tasks/{request.match_info['task']}"

    # --- outbox -----------------------------------------------------------

    async def outbox(self, request: web.Request) -> web.Response:
        """Show what was committed and waits to be created."""
        problem, shown = "", Shown([], [])
        try:
            shown = await self.console.outbox.oldest(self.platform.datastore_address)
        except GoogleAPIError as error:
            problem = f"Datastore does not answer: {error}"
        rate = await self._relayed_per_s()
        return self._page(request, "outbox.html", shown=shown, rate=rate, problem=problem)

    async def sweep_outbox(self, request: web.Request) -> web.Response:
        """Run the outbox's entry of cron.yaml now."""
        run = await self.platform.cron.run_now(SWEEP_URL)
        raise await _back(request, "/outbox", "swept" if run.ok else "not-swept")

    async def _relayed_per_s(self) -> float | None:
        """Return the relay's rate, None if the app does not say in time."""
        try:
            asking = self.platform.cron.ask(METRICS_PATH)
            return relayed_per_s((await asyncio.wait_for(asking, _PATIENCE_S))[1])
        except TimeoutError:
            return None

    async def _late_or_none(self) -> list[Waiting] | None:
        """Return what has waited too long, None if Datastore does not say in time."""
        reading = self.console.outbox.late(self.platform.datastore_address)
        return await _in_time(reading)

    # --- dead tasks -------------------------------------------------------

    async def dead(self, request: web.Request) -> web.Response:
        """Show what the app parked."""
        problem, rows = "", []
        try:
            rows = await self.console.dead_tasks.newest(self.platform.datastore_address)
        except GoogleAPIError as error:
            problem = f"Datastore does not answer: {error}"
        return self._page(
            request, "dead.html", rows=rows, problem=problem, is_cut=len(rows) == PAGE_DEAD
        )

    async def replay(self, request: web.Request) -> web.Response:
        """Enqueue the replay of a dead task."""
        dead_id = request.match_info["id"]
        if len(dead_id.encode(errors="replace")) > MAX_NAME_BYTES:
            raise web.HTTPNotFound(text="There is no such dead task.")
        enqueue_replay(
            self.engine,
            dead_id,
            self.platform.app_url,
            self.platform.settings.service_account,
        )
        raise await _back(request, "/dead", "replayed")

    async def _dead_or_none(self) -> list[DeadTask] | None:
        """Return the unresolved dead tasks, None if Datastore does not say in time."""
        address = self.platform.datastore_address
        return await _in_time(self.console.dead_tasks.newest(address, unresolved_only=True))

    # --- mail -------------------------------------------------------------

    async def mail(self, request: web.Request) -> web.Response:
        """Show received mail, newest first."""
        text = request.query.get("q", "").strip()
        before = _whole(request.query.get("before", ""))
        store = self.platform.mail.store
        found = store.list(text=text, before_id=before or None, limit=_PAGE_MAILS + 1)
        page = found[:_PAGE_MAILS]
        older = ""
        if len(found) > _PAGE_MAILS:
            kept = {"q": text} if text else {}
            older = "/mail?" + urlencode(kept | {"before": str(page[-1].id)})
        count = store.count(text)
        return self._page(
            request,
            "mail.html",
            rows=page,
            older=older,
            count=count,
            text=text,
            is_first=not before,
        )

    async def one_mail(self, request: web.Request) -> web.Response:
        """Show one message as text."""
        mail = self.platform.mail.get(int(request.match_info["id"]))
        if mail is None:
            raise web.HTTPNotFound(text="There is no such message.")
        source = mail.raw.decode("utf-8", "replace")
        return self._page(request, "mail_one.html", mail=mail, source=source)

    async def clear_mail(self, request: web.Request) -> web.Response:
        """Forget all mail."""
        self.platform.mail.clear()
        raise await _back(request, "/mail", "cleared")

    # --- cron -------------------------------------------------------------

    async def cron(self, request: web.Request) -> web.Response:
        """Show the cron jobs."""
        jobs = list(self.platform.cron.jobs.values())
        return self._page(request, "cron.html", jobs=jobs, problem=self.platform.cron_note)

    async def change_cron(self, request: web.Request) -> web.Response:
        """Run, pause or resume a job."""
        name = str((await request.post()).get("name", ""))
        cron, verb = self.platform.cron, request.match_info["verb"]
        if verb == "run":
            run = await cron.run_now(name)
            raise await _back(request, "/cron", "cron-ok" if run.ok else "cron-failed")
        cron.pause(name, verb == "pause")
        raise await _back(request, "/cron", "paused" if verb == "pause" else "resumed")

    # --- faults -----------------------------------------------------------

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
        raise await _back(request, "/faults", "fault-on")

    async def remove_fault(self, request: web.Request) -> web.Response:
        """Switch a fault off."""
        rule = str((await request.post()).get("rule", ""))
        with self.engine.lock:
            self.engine.faults.remove(rule)
        raise await _back(request, "/faults", "fault-off")

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
        raise await _back(request, "/faults", "mail-faults")

    async def kill_worker(self, request: web.Request) -> web.Response:
        """Kill one of the app's workers."""
        notice = "killed" if self.platform.kill_worker() is not None else "no-worker"
        raise await _back(request, "/faults", notice)

    def _rules(self) -> list[Any]:
        with self.engine.lock:
            return self.engine.faults.all()

    def _faults_page(self, request: web.Request, problem: str) -> web.Response:
        page = self._page(
            request,
            "faults.html",
            rules=self._rules(),
            kinds=[(kind, FAULT_WORDS.get(kind, kind)) for kind in KINDS],
            mail=self.platform.mail.faults,
            queue_ids=[row["id"] for row in work.queue_rows(self.engine)],
            problem=problem,
        )
        page.set_status(400 if problem else 200)
        return page

    # --- around every page ------------------------------------------------

    def _page(self, request: web.Request, template: str, **context: object) -> web.Response:
        notice = NOTICES.get(request.query.get("said", ""), "")
        return self.console.render(request, template, notice=notice, **context)

    def _told(self, handler: Handler) -> Handler:
        """Wrap a handler: what it refuses becomes a page that says so."""

        async def told(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except Refused as refused:
                status = 404 if refused.code == "NOT_FOUND" else 409
                return self._error(request, status, refused.message)
            except DevserverError as error:
                return self._error(request, 404, str(error))
            except (web.HTTPNotFound, web.HTTPBadRequest) as error:
                return self._error(request, error.status, error.text or "")

        return told

    def _error(self, request: web.Request, status: int, message: str) -> web.Response:
        page = self._page(request, "error.html", status=status, message=message)
        page.set_status(status)
        return page


async def _in_time(reading: Awaitable[T]) -> T | None:
    """Return what is read from Datastore, None if it does not answer in time."""
    try:
        return await asyncio.wait_for(reading, _PATIENCE_S)
    except (GoogleAPIError, TimeoutError):
        return None


async def _back(request: web.Request, usual: str, notice: str) -> web.HTTPSeeOther:
    """Return the way back to the page whose form was sent."""
    back = str((await request.post()).get("back", "")) or usual
    if not _OWN_PATH.fullmatch(back):
        back = usual
    path, _, query = back.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("said=")]
    return web.HTTPSeeOther(f"{path}?{'&'.join([*kept, 'said=' + quote(notice)])}")


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


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def _bytes(body: dict[str, Any]) -> bytes:
    """Return the bytes of a body as views.body_json shows it."""
    if "base64" in body:
        return base64.b64decode(body["base64"])
    return str(body.get("text", "")).encode()
