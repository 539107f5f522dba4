"""JSON of the console itself, next to the Cloud Tasks emulator's control API.

GET  /api/v1/workers                  {count} of the app's workers, {max}
POST /api/v1/workers                  {count}: as many, until the app is loaded again
POST /api/v1/workers/kill             {pid} of the worker that was killed; {after_s}: not yet
GET  /api/v1/mail?text=&before=       newest first, and how many there are
GET  /api/v1/mail/repeats?text=&since=&until=   how many messages came more than once
GET  /api/v1/mail/<id>                one message with headers and text
POST /api/v1/mail/clear
GET  /api/v1/mail/faults, POST        {temporary_rate, refused, latency_ms}
GET  /api/v1/cron                     jobs with their last run
POST /api/v1/cron/run                 {name}: runs it and answers how it went
POST /api/v1/cron/pause               {name, paused}: its schedule rests, or resumes
GET  /api/v1/services                 what runs where
GET  /api/v1/shell                    {target, root, environment}: what `make shell` starts with
GET  /api/v1/identity-token           text: an OIDC token by which a program may call the app
GET  /api/v1/logs?service=&level=&q=&task=&trace=&before=&limit=   log records
"""

import asyncio
from dataclasses import asdict
from typing import Any

from aiohttp import web

from rollforward.local.app.server import MAX_WORKERS
from rollforward.local.console.frame import whole
from rollforward.local.console.pages.logs import filter_of
from rollforward.local.console.platform import Platform
from rollforward.local.cron.cron import Job, Run, UnknownJobError
from rollforward.local.errors import PlatformError
from rollforward.local.logs.tail import LogRecord
from rollforward.local.services.mail import MailFaults, ReceivedMail
from rollforward.local.system.http_bodies import json_object

MAX_KILL_AFTER_S = 10
_PAGE_MAILS = 100
_MAX_RECORDS = 1000
_FAULT_FIELDS = set(MailFaults.__dataclass_fields__)


class Api:
    """The handlers of the JSON routes."""

    def __init__(self, platform: Platform) -> None:
        """Serve this platform."""
        self.platform = platform

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/api/v1/workers", self.count_workers),
            web.post("/api/v1/workers", self.resize),
            web.post("/api/v1/workers/kill", self.kill_worker),
            web.get("/api/v1/mail", self.list_mail),
            web.get("/api/v1/mail/repeats", self.count_duplicates),
            web.get("/api/v1/mail/faults", self.show_mail_faults),
            web.post("/api/v1/mail/faults", self.set_mail_faults),
            web.post("/api/v1/mail/clear", self.clear_mail),
            web.get(r"/api/v1/mail/{id:[0-9]{1,18}}", self.show_mail),
            web.get("/api/v1/cron", self.list_cron),
            web.post("/api/v1/cron/run", self.run_cron),
            web.post("/api/v1/cron/pause", self.pause_cron),
            web.get("/api/v1/services", self.list_services),
            web.get("/api/v1/shell", self.show_shell),
            web.get("/api/v1/identity-token", self.print_identity_token),
            web.get("/api/v1/logs", self.list_logs),
        ]

    async def count_workers(self, request: web.Request) -> web.Response:
        """Answer how many workers the app has, and may have."""
        return web.json_response({"count": self.platform.workers(), "max": MAX_WORKERS})

    async def resize(self, request: web.Request) -> web.Response:
        """Let the app have more workers, or fewer."""
        try:
            count = (await _fields(request, {"count"})).get("count")
            await self.platform.resize(count if type(count) is int else 0)
        except ValueError as error:
            return _error(400, str(error))
        return web.json_response({"count": count})

    async def kill_worker(self, request: web.Request) -> web.Response:
        """Kill one of the app's workers, at once or in some seconds.

        The app asks for it, too, and the killed worker may be the one that asks. Its visitor's
        browser would repeat a request whose response is lost.
        """
        try:
            after_s = (await _fields(request, {"after_s"})).get("after_s", 0)
        except ValueError as error:
            return _error(400, str(error))
        if not isinstance(after_s, int | float) or not 0 <= after_s <= MAX_KILL_AFTER_S:
            return _error(400, f"after_s must be a number from 0 to {MAX_KILL_AFTER_S}")
        if after_s:
            asyncio.get_running_loop().call_later(after_s, self.platform.kill_worker)
            return web.json_response({"pid": None}, status=202)
        pid = self.platform.kill_worker()
        if pid is None:
            return _error(409, "The app has no worker now.")
        return web.json_response({"pid": pid})

    async def list_mail(self, request: web.Request) -> web.Response:
        """Answer a page of messages."""
        text, before_id = request.query.get("text", ""), request.query.get("before", "")
        if before_id and (not before_id.isdecimal() or len(before_id) > 18):
            return _error(400, "before must be the id of a message")
        store = self.platform.mail.store
        mails = store.list(
            text=text, before_id=int(before_id) if before_id else None, limit=_PAGE_MAILS
        )
        next_id = mails[-1].id if len(mails) == _PAGE_MAILS else None
        shown = [_mail_json(mail) for mail in mails]
        return web.json_response({"count": store.count(text), "messages": shown, "next": next_id})

    async def count_duplicates(self, request: web.Request) -> web.Response:
        """Answer how many messages came again."""
        query = request.query
        try:
            since, until = float(query.get("since", "0")), float(query.get("until", "1e12"))
        except ValueError:
            return _error(400, "since and until must be seconds since 1970")
        repeats = self.platform.mail.store.duplicates(
            query.get("text", ""), since=since, until=until
        )
        return web.json_response({"repeats": repeats})

    async def show_mail(self, request: web.Request) -> web.Response:
        """Answer one message."""
        mail = self.platform.mail.get(int(request.match_info["id"]))
        if mail is None:
            return _error(404, "There is no such message.")
        return web.json_response(_mail_json(mail) | {"headers": mail.headers(), "text": mail.text})

    async def clear_mail(self, request: web.Request) -> web.Response:
        """Forget all messages."""
        self.platform.mail.clear()
        return web.json_response({})

    async def show_mail_faults(self, request: web.Request) -> web.Response:
        """Answer how the mail server misbehaves."""
        return web.json_response(asdict(self.platform.mail.faults))

    async def set_mail_faults(self, request: web.Request) -> web.Response:
        """Change how the mail server misbehaves; fields left out stay."""
        try:
            fields = await _fields(request, _FAULT_FIELDS)
            faults = self.platform.mail.set_faults(**_checked_faults(fields))
        except (ValueError, PlatformError) as error:
            return _error(400, str(error))
        return web.json_response(asdict(faults))

    async def list_cron(self, request: web.Request) -> web.Response:
        """Answer the cron jobs."""
        jobs = self.platform.cron.jobs.values()
        return web.json_response({"jobs": [_job_json(job) for job in jobs]})

    async def run_cron(self, request: web.Request) -> web.Response:
        """Run a cron job now and answer how it went."""
        try:
            fields = await _fields(request, {"name"})
            run = await self.platform.cron.run_now(str(fields.get("name", "")))
        except UnknownJobError as error:
            return _error(404, str(error))
        except ValueError as error:
            return _error(400, str(error))
        return web.json_response(_run_json(run))

    async def pause_cron(self, request: web.Request) -> web.Response:
        """Let a cron job's schedule rest, or resume, and answer the job."""
        try:
            fields = await _fields(request, {"name", "paused"})
            if not isinstance(fields.get("paused"), bool):
                return _error(400, "paused must be true or false")
            self.platform.cron.pause(str(fields.get("name", "")), fields["paused"])
        except UnknownJobError as error:
            return _error(404, str(error))
        except ValueError as error:
            return _error(400, str(error))
        return web.json_response(_job_json(self.platform.cron.job(str(fields["name"]))))

    async def list_services(self, request: web.Request) -> web.Response:
        """Answer what runs where."""
        rows = [
            {"name": row.name, "state": row.state, "address": row.address, "note": row.note}
            for row in self.platform.services()
        ]
        return web.json_response({"services": rows})

    async def show_shell(self, request: web.Request) -> web.Response:
        """Answer the settings that a shell needs for the same services, and which app runs."""
        chosen = self.platform.settings
        return web.json_response(
            {
                "target": chosen.target,
                "root": str(chosen.root),
                "environment": self.platform.shell_environment(),
            }
        )

    async def print_identity_token(self, request: web.Request) -> web.Response:
        """Answer what `gcloud auth print-identity-token` prints for the deployed app."""
        account, audience = self.platform.settings.service_account, self.platform.app_url
        token = self.platform.tasks.engine.tokens.oidc_token(account, audience)
        return web.Response(text=token, headers={"Cache-Control": "no-store"})

    async def list_logs(self, request: web.Request) -> web.Response:
        """Answer log records, the newest first; `next` continues the list."""
        try:
            limit = _limit(request.query.get("limit", "100"))
            records = self.platform.log_tail.newest(filter_of(request, self.platform.traces), limit)
        except web.HTTPBadRequest as error:
            return _error(400, error.text or "")
        next_number = records[-1].number if len(records) == limit else None
        shown = [_record_json(record) for record in records]
        return web.json_response({"records": shown, "next": next_number})


def _limit(text: str) -> int:
    """Return how many records are asked for.

    Raises:
        web.HTTPBadRequest: it is no number, or too many.
    """
    limit = whole(text)
    if not 1 <= limit <= _MAX_RECORDS:
        raise web.HTTPBadRequest(text=f"limit must be a number from 1 to {_MAX_RECORDS}")
    return limit


def _record_json(record: LogRecord) -> dict[str, Any]:
    return {
        "number": record.number,
        "at": record.at,
        "service": record.service,
        "level": record.level,
        "task": record.task,
        "lines": record.lines,
    }


def _checked_faults(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields in the types of MailFaults.

    Raises:
        ValueError: one is of another type.
    """
    checked = dict(fields)
    for name in ("temporary_rate", "latency_ms"):
        value = fields.get(name, 0)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{name} must be a number")  # noqa: TRY004 - the caller's input
    refused = fields.get("refused", [])
    if not isinstance(refused, list) or not all(isinstance(item, str) for item in refused):
        raise ValueError("refused must be a list of addresses")
    if "refused" in fields:
        checked["refused"] = tuple(refused)
    return checked


async def _fields(request: web.Request, allowed: set[str]) -> dict[str, Any]:
    """Return the JSON object of a request.

    Raises:
        ValueError: no JSON object, or a field that is not known.
    """
    fields = await json_object(request)
    if not set(fields) <= allowed:
        raise ValueError(f"send a JSON object with {', '.join(sorted(allowed))}")
    return fields


def _mail_json(mail: ReceivedMail) -> dict[str, Any]:
    return {
        "id": mail.id,
        "received": mail.received,
        "sender": mail.sender,
        "recipients": mail.recipients,
        "subject": mail.subject,
        "message_id": mail.message_id,
        "size_bytes": len(mail.raw),
    }


def _job_json(job: Job) -> dict[str, Any]:
    return {
        "name": job.name,
        "url": job.url,
        "schedule": job.schedule_text,
        "timezone": job.zone,
        "paused": job.paused,
        "next": [moment.isoformat() for moment in job.next_runs()],
        "last": _run_json(job.last_run) if job.last_run else None,
    }


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "started": run.started.isoformat(),
        "duration_ms": run.duration_ms,
        "status": run.status,
        "ok": run.ok,
        "said": run.said,
    }


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
