"""Pages of the app's own console, which it has wherever it runs: this one leads there."""

from aiohttp import web

from rollforward.local.console.frame import Route, Section

PREFIX = "/rollforward"


class AppConsole(Section):
    """The dead tasks, the outbox and the runs, which the app shows itself."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/dead", self.lead_there),
            ("GET", "/outbox", self.lead_there),
            ("GET", "/runs", self.lead_there),
            ("GET", "/runs/{pattern}/{id}", self.lead_there),
        ]

    async def lead_there(self, request: web.Request) -> web.Response:
        """Lead to the page of the same name in the app's console."""
        raise web.HTTPFound(f"{self.platform.app_url}{PREFIX}{request.raw_path}")
