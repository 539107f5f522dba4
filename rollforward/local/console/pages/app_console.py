"""Pages of the app's own console, which it has wherever it runs: this one leads there."""

import json
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from aiohttp import web

from rollforward.local.console.frame import Route, Section

PREFIX = "/rollforward"
# By pattern, the kind of the entity of a run: its name is the run's id.
KINDS = {"batches": "BatchState", "continuations": "ContinuationRun", "flows": "FlowRun"}
_PATTERNS = {kind: pattern for pattern, kind in KINDS.items()}


def entity_url(pattern: str, run_id: str) -> str:
    """Return the address of the entity of a run; "": its pattern keeps runs in several rows.

    >>> entity_url("flows", "orders|7"), entity_url("app", "x")
    ('/data/entity?path=%5B%22FlowRun%22%2C+%22orders%7C7%22%5D', '')
    """
    kind = KINDS.get(pattern)
    path = json.dumps([kind, run_id], ensure_ascii=False)
    return "/data/entity?" + urlencode({"path": path}) if kind else ""


def run_path(path: Sequence[object]) -> str:
    """Return the pattern and the id of the run of an entity, as its addresses end; "": no run.

    >>> run_path(["FlowRun", "orders|7"]), run_path(["Book", 7])
    ('flows/orders%7C7', '')
    """
    kind, *rest = path
    pattern = _PATTERNS.get(str(kind))
    return f"{pattern}/{quote(str(rest[0]), safe='')}" if pattern and len(rest) == 1 else ""


class AppConsole(Section):
    """The dead tasks, the outbox and the runs, which the app shows itself."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/dead", self.redirect),
            ("GET", "/outbox", self.redirect),
            ("GET", "/runs", self.redirect),
            ("GET", "/runs/{pattern}/{id}", self.redirect),
        ]

    async def redirect(self, request: web.Request) -> web.Response:
        """Lead to the page of the same name in the app's console."""
        raise web.HTTPFound(f"{self.platform.app_url}{PREFIX}{request.raw_path}")
