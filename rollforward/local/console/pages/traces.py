"""The newest traces, and one of them as a waterfall."""

from urllib.parse import urlencode

from aiohttp import web

from rollforward.local.console.frame import Route, Section, whole
from rollforward.local.console.pages.app_console import PREFIX
from rollforward.local.console.reading import waterfall
from rollforward.local.traces import otlp
from rollforward.local.traces.store import TraceFilter

PAGE_TRACES = 100
# Of a span of the page; further ones are in the API.
SHOWN_LINKS = 20


class Traces(Section):
    """The traces that the app's SDK has sent."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/traces", self.traces),
            ("GET", "/traces/{id}", self.trace),
        ]

    async def traces(self, request: web.Request) -> web.Response:
        """Show traces, the newest first, as the address filters them."""
        chosen = filter_of(request)
        traces = self.platform.traces.newest(chosen, PAGE_TRACES + 1)
        page = traces[:PAGE_TRACES]
        older = ""
        if len(traces) > PAGE_TRACES:
            fields = {name: request.query.get(name, "") for name in ("q", "run", "failed", "slow")}
            chosen_fields = {name: value for name, value in fields.items() if value}
            older = "/traces?" + urlencode(chosen_fields | {"before": str(page[-1].number)})
        return self.page(
            request,
            "traces.html",
            rows=page,
            chosen=chosen,
            older=older,
            is_first=not chosen.before,
            is_installed=otlp.is_installed(),
        )

    async def trace(self, request: web.Request) -> web.Response:
        """Show one trace as a waterfall, or the part of it below one span."""
        trace = self.platform.traces.get(request.match_info["id"])
        if trace is None:
            raise web.HTTPNotFound(text="This trace is not kept: the newest are, until a stop.")
        below, is_whole = request.query.get("span", ""), bool(request.query.get("all"))
        if below and below not in trace.spans:
            raise web.HTTPNotFound(text="This trace has no such span, or it has not arrived yet.")
        return self.page(
            request,
            "trace.html",
            trace=trace,
            drawn=waterfall.draw(trace, self.platform.traces, below=below, is_whole=is_whole),
            below=trace.spans.get(below),
            is_whole=is_whole,
            find=self.platform.traces.find,
            dead_tasks_url=f"{self.platform.app_url}{PREFIX}/dead/one",
            shown_links=SHOWN_LINKS,
            max_rows=waterfall.MAX_ROWS,
        )


def filter_of(request: web.Request) -> TraceFilter:
    """Return what an address asks for.

    Raises:
        web.HTTPBadRequest: a time is no number.
    """
    query = request.query
    text, run, slow = (query.get(name, "").strip() for name in ("q", "run", "slow"))
    if slow and not whole(slow):
        raise web.HTTPBadRequest(text="A slow trace takes a number of milliseconds.")
    return TraceFilter(
        text, run, bool(query.get("failed")), whole(slow), whole(query.get("before", ""))
    )
