"""The JSON API of the emulator: what the service hides, and its levers.

    GET    /api/v1/queues
    POST   /api/v1/queues/<queue>/{pause,resume,purge}
    GET    /api/v1/tasks?queue=&state=&after=&limit=     newest first
    GET    /api/v1/tasks/<queue>/<task>                  with attempts
    POST   /api/v1/tasks/<queue>/<task>/{run,retry,delete}
    GET    /api/v1/faults                                rules, and how often each fired
    POST   /api/v1/faults                                {kind, rate, queue, path, task, ...}
    DELETE /api/v1/faults, /api/v1/faults/<id>
    GET    /api/v1/incidents?since=&until=&path=&text=   deliveries struck, repeated or failed
    POST   /api/v1/marks                                 {kind, text}: kill, flush
    POST   /api/v1/reset                                 {queue?}
    POST   /api/v1/wait-idle                             {timeout_s, queue?, ...}
    POST   /api/v1/clock/advance                         {seconds}
    GET    /oauth2/v1/certs, /oauth2/v3/certs, /.well-known/openid-configuration

A page of another site must not call this API from a visitor's browser. So the Host must be this
machine's, and a foreign Origin is refused. A request that changes something must be JSON, which no
plain form can send.
"""

import functools
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from rollforward.local.cloudtasks.delivery.faults import FaultRuleError
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.server import views
from rollforward.local.cloudtasks.server.callers import Callers
from rollforward.local.cloudtasks.server.dispatcher import KillWorker
from rollforward.local.system.http_bodies import json_object

MAX_WAIT_S = 600.0
MAX_PAGE = 500
MAX_SECONDS = 10**9
MAX_TIME_S = 10**12

_HTTP_OF_CODE = {"NOT_FOUND": 404, "FAILED_PRECONDITION": 409, "PERMISSION_DENIED": 403}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(
    engine: Engine, kill_worker: KillWorker | None = None, callers: Callers | None = None
) -> list[web.RouteDef]:
    """Return the routes, guarded, for an aiohttp application."""
    admitted = callers or Callers()
    control = Control(engine, kill_worker)
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/api/v1/queues", control.list_queues),
        ("POST", "/api/v1/queues/{queue}/{verb:pause|resume|purge}", control.change_queue),
        ("GET", "/api/v1/tasks", control.list_tasks),
        ("GET", "/api/v1/tasks/{queue}/{task}", control.show_task),
        ("POST", "/api/v1/tasks/{queue}/{task}/{verb:run|retry|delete}", control.change_task),
        ("GET", "/api/v1/faults", control.list_faults),
        ("POST", "/api/v1/faults", control.add_fault),
        ("DELETE", "/api/v1/faults", control.clear_faults),
        ("DELETE", "/api/v1/faults/{rule}", control.remove_fault),
        ("GET", "/api/v1/incidents", control.list_incidents),
        ("POST", "/api/v1/marks", control.mark),
        ("POST", "/api/v1/reset", control.reset),
        ("POST", "/api/v1/wait-idle", control.wait_idle),
        ("POST", "/api/v1/clock/advance", control.advance_clock),
        ("GET", "/oauth2/v1/certs", control.certs),
        ("GET", "/oauth2/v3/certs", control.jwks),
        ("GET", "/.well-known/openid-configuration", control.openid_configuration),
    ]
    return [web.route(method, path, _guarded(handler, admitted)) for method, path, handler in table]


def _guarded(handler: Handler, callers: Callers) -> Handler:
    """Wrap a handler: refuse strangers, turn refusals into JSON answers."""

    @functools.wraps(handler)
    async def guarded(request: web.Request) -> web.StreamResponse:
        if problem := callers.reason(request.headers):
            return _error(403, problem)
        if request.method != "GET" and request.content_type != "application/json":
            return _error(403, "A request that changes something must be application/json.")
        try:
            return await handler(request)
        except Refused as refused:
            return _error(_HTTP_OF_CODE.get(refused.code, 400), refused.message)
        except ValueError as error:
            return _error(400, str(error))

    return guarded


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


async def _fields(request: web.Request, *allowed: str) -> dict[str, Any]:
    """Return the JSON object of a request, which may be empty.

    Raises:
        ValueError: not JSON, no object, or with a field that is not known.
    """
    fields = await json_object(request)
    if allowed and (unknown := sorted(set(fields) - set(allowed))):
        raise ValueError(f"unknown fields: {', '.join(unknown)}")
    return fields


def _number(fields: dict[str, Any], field: str, default: float | None = None) -> float:
    value = fields.get(field, default)
    # As a chain: NaN is neither less nor more than anything.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"{field} must be a number from 0 to {MAX_SECONDS}")
    return float(value)


def _text(fields: dict[str, Any], field: str) -> str:
    value = fields.get(field, "")
    if not isinstance(value, str):
        raise ValueError(f"{field} must be text")  # noqa: TRY004 - the caller's fault
    return value


def _parse_integer(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:  # The store counts in 64 bits.
        raise ValueError(f"{text:.20} is no whole number, or too large")
    return int(text)


def _seconds(text: str) -> float:
    try:
        if 0 <= (at := float(text)) <= MAX_TIME_S:
            return at
    except ValueError:
        pass
    raise ValueError(f"{text:.20} is no time in seconds since 1970")


class Control:
    """The handlers of the routes."""

    def __init__(self, engine: Engine, kill_worker: KillWorker | None) -> None:
        self._engine = engine
        self._can_kill = kill_worker is not None

    def _queue_name(self, queue_id: str) -> str:
        return self._engine.place.queue_name(queue_id) if queue_id else ""

    # --- queues and tasks -------------------------------------------------

    async def list_queues(self, request: web.Request) -> web.Response:
        """Answer all queues."""
        engine = self._engine
        return web.json_response(
            {
                "queues": views.queues_json(engine),
                "now": engine.clock.now(),
                "clock_offset_s": engine.clock.offset_s,
            }
        )

    async def change_queue(self, request: web.Request) -> web.Response:
        """Pause, resume or purge a queue."""
        name = self._queue_name(request.match_info["queue"])
        verbs = {
            "pause": self._engine.queues.pause,
            "resume": self._engine.queues.resume,
            "purge": self._engine.queues.purge,
        }
        verbs[request.match_info["verb"]](name)
        queues = views.queues_json(self._engine)
        return web.json_response(next(queue for queue in queues if queue["name"] == name))

    async def list_tasks(self, request: web.Request) -> web.Response:
        """Answer a page of tasks, newest first; `next` continues it."""
        query = request.query
        state = query.get("state", "")
        if state and state not in views.STATES:
            raise ValueError(f"state must be one of {', '.join(views.STATES)}")
        limit = min(_parse_integer(query.get("limit", "50")), MAX_PAGE)
        if limit < 1:
            raise ValueError("limit must be 1 or more")
        tasks = self._engine.history.newest(
            self._queue_name(query.get("queue", "")),
            state,
            _parse_integer(query.get("after") or "0"),
            limit,
        )
        next_token = str(tasks[-1].sequence) if len(tasks) == limit else ""
        shown = [views.task_json(self._engine, task) for task in tasks]
        return web.json_response({"tasks": shown, "next": next_token})

    def _task_name(self, request: web.Request) -> str:
        queue_name = self._queue_name(request.match_info["queue"])
        return f"{queue_name}/tasks/{request.match_info['task']}"

    async def show_task(self, request: web.Request) -> web.Response:
        """Answer a task with its attempts."""
        name = self._task_name(request)
        return web.json_response(views.task_with_attempts_json(self._engine, name))

    async def change_task(self, request: web.Request) -> web.Response:
        """Run, retry or delete a task."""
        name = self._task_name(request)
        verbs: dict[str, Callable[[str], Any]] = {
            "run": self._engine.tasks.run,
            "retry": self._engine.tasks.retry,
            "delete": self._engine.tasks.delete,
        }
        verbs[request.match_info["verb"]](name)
        return web.json_response(views.task_with_attempts_json(self._engine, name))

    # --- faults -----------------------------------------------------------

    async def list_faults(self, request: web.Request) -> web.Response:
        """Answer the fault rules."""
        with self._engine.lock:
            rules = [rule.to_json() for rule in self._engine.faults.all()]
        return web.json_response({"faults": rules})

    async def add_fault(self, request: web.Request) -> web.Response:
        """Add a fault rule."""
        fields = await _fields(request)
        if fields.get("kind") == "kill_worker" and not self._can_kill:
            raise FaultRuleError("kill_worker: nobody here can kill the worker")
        with self._engine.lock:
            rule = self._engine.faults.add(**fields)
        return web.json_response(rule.to_json(), status=201)

    async def clear_faults(self, request: web.Request) -> web.Response:
        """Take all fault rules out."""
        with self._engine.lock:
            self._engine.faults.clear()
        return web.json_response({})

    async def remove_fault(self, request: web.Request) -> web.Response:
        """Take one fault rule out."""
        with self._engine.lock:
            was_there = self._engine.faults.remove(request.match_info["rule"])
        return web.json_response({}) if was_there else _error(404, "No such fault rule.")

    # --- what happened ----------------------------------------------------

    async def list_incidents(self, request: web.Request) -> web.Response:
        """Answer the deliveries that were struck, repeated or failed, and what people did."""
        query = request.query
        until = query.get("until")
        incidents = self._engine.incidents.to_json(
            _seconds(query.get("since", "0")),
            None if until is None else _seconds(until),
            query.get("path", ""),
            query.get("text", ""),
        )
        return web.json_response(incidents)

    async def mark(self, request: web.Request) -> web.Response:
        """Note that something was done to the app."""
        fields = await _fields(request, "kind", "text")
        with self._engine.lock:
            mark = self._engine.incidents.mark(str(fields.get("kind")), str(fields.get("text", "")))
        return web.json_response(asdict(mark), status=201)

    # --- reset, idle, clock -----------------------------------------------

    async def reset(self, request: web.Request) -> web.Response:
        """Forget everything, or everything of one queue."""
        fields = await _fields(request, "queue")
        self._engine.reset(self._queue_name(_text(fields, "queue")))
        return web.json_response({})

    async def wait_idle(self, request: web.Request) -> web.Response:
        """Answer when nothing is left to do, or 408 with the rest."""
        fields = await _fields(
            request, "timeout_s", "queue", "include_scheduled", "include_retrying"
        )
        is_idle = await self._engine.until_idle(
            min(_number(fields, "timeout_s", 30.0), MAX_WAIT_S),
            self._queue_name(_text(fields, "queue")),
            with_scheduled=bool(fields.get("include_scheduled", False)),
            with_retrying=bool(fields.get("include_retrying", True)),
        )
        if is_idle:
            return web.json_response({"idle": True})
        unfinished = {queue["id"]: queue["counts"] for queue in views.queues_json(self._engine)}
        return web.json_response({"idle": False, "queues": unfinished}, status=408)

    async def advance_clock(self, request: web.Request) -> web.Response:
        """Move the clock forward."""
        fields = await _fields(request, "seconds")
        now_s = self._engine.advance(_number(fields, "seconds"))
        return web.json_response({"now": now_s, "clock_offset_s": self._engine.clock.offset_s})

    # --- keys -------------------------------------------------------------

    async def certs(self, request: web.Request) -> web.Response:
        """Answer the certificates by key id, as google-auth reads them."""
        return web.json_response(self._engine.tokens.certs())

    async def jwks(self, request: web.Request) -> web.Response:
        """Answer the JSON web key set."""
        return web.json_response(self._engine.tokens.jwks())

    async def openid_configuration(self, request: web.Request) -> web.Response:
        """Answer the discovery document."""
        keys_url = f"http://{request.headers['Host']}/oauth2/v3/certs"
        return web.json_response(self._engine.tokens.configuration(keys_url))
