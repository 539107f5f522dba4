"""The newest log records of all services."""

from urllib.parse import urlencode

from aiohttp import web

from rollforward.local.console.frame import Route, Section, whole
from rollforward.local.logs.tail import LEVELS, SERVICES, LogFilter
from rollforward.local.traces.store import TraceStore

PAGE_RECORDS = 200


class Logs(Section):
    """The merged tail of all services, as the address filters it."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/logs", self.logs),
        ]

    async def logs(self, request: web.Request) -> web.Response:
        """Show records, the newest first."""
        chosen = filter_of(request, self.platform.traces)
        records = self.platform.log_tail.newest(chosen, PAGE_RECORDS + 1)
        page = records[:PAGE_RECORDS]
        fields = {"service": chosen.service, "level": chosen.level, "task": chosen.task}
        fields["q"] = chosen.text
        fields["trace"] = request.query.get("trace", "")
        older = ""
        if len(records) > PAGE_RECORDS:
            chosen_fields = {name: value for name, value in fields.items() if value}
            older = "/logs?" + urlencode(chosen_fields | {"before": str(page[-1].number)})
        return self.page(
            request,
            "logs.html",
            rows=page,
            chosen=chosen,
            trace_id=fields["trace"],
            older=older,
            is_first=not chosen.before,
            services=SERVICES,
            levels=LEVELS,
        )


def filter_of(request: web.Request, traces: TraceStore) -> LogFilter:
    """Return what an address asks for; a trace selects its tasks.

    Raises:
        web.HTTPBadRequest: the service, level or trace does not exist.
    """
    query = request.query
    service, level, text, task = (
        query.get(name, "").strip() for name in ("service", "level", "q", "task")
    )
    if service and service not in SERVICES:
        raise web.HTTPBadRequest(text=f"There is no service “{service}”.")
    if level and level not in LEVELS:
        raise web.HTTPBadRequest(text=f"There is no level “{level}”.")
    tasks = None
    if trace_id := query.get("trace", ""):
        trace = traces.get(trace_id)
        if trace is None:
            raise web.HTTPBadRequest(text="This trace is not kept: the newest are, until a stop.")
        tasks = frozenset(trace.tasks)
    return LogFilter(service, level, text, task, whole(query.get("before", "")), tasks)
