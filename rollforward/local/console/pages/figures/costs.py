"""The costs of each route and each task, in operations and in dollars."""

from aiohttp import web

from rollforward.local.console.frame import Route, Section
from rollforward.local.console.reading.route_costs import MAX_ROWS, RouteCost, route_costs
from rollforward.local.prices import price_list


class Costs(Section):
    """The page of the costs of each route and each task."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [("GET", "/costs", self.costs)]

    async def costs(self, request: web.Request) -> web.Response:
        """Show routes and tasks, the dearest first, and the costs outside of both."""
        prices = price_list()
        costs = route_costs(self.platform.reports_folder, prices)

        def of(kind: str) -> list[RouteCost]:
            return [row for row in costs if row.kind == kind]

        tables = {"Tasks": of("task"), "Routes": of("route")}
        shown = {title: rows[:MAX_ROWS] for title, rows in tables.items()}
        left_out = {title: len(rows) - len(shown[title]) for title, rows in tables.items()}
        return self.page(
            request, "costs.html", tables=shown, left_out=left_out, rest=of("rest"), prices=prices
        )
