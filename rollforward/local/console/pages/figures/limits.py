"""The app's use of each documented limit of Datastore."""

from aiohttp import web

from rollforward.local.console.frame import Route, Section
from rollforward.local.console.reading.limit_uses import limit_uses


class Limits(Section):
    """The page of the app's use of Datastore's limits."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [("GET", "/limits", self.limits)]

    async def limits(self, request: web.Request) -> web.Response:
        """Show the largest use of each limit, the nearest one first."""
        return self.page(request, "limits.html", uses=limit_uses(self.platform.reports_folder))
