"""The queues: state, load and limits of each; paused, resumed, purged."""

from aiohttp import web

from rollforward.local.console.frame import Route, Section, back
from rollforward.local.console.reading import work


class Queues(Section):
    """The queues: state, load and limits of each; paused, resumed, purged."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/queues", self.queues),
            ("POST", "/queues/{queue}/{verb:pause|resume}", self.change_queue),
            ("GET", "/queues/{queue}/purge", self.confirm_purge),
            ("POST", "/queues/{queue}/purge", self.purge),
        ]

    async def queues(self, request: web.Request) -> web.Response:
        """Show every queue."""
        return self.page(request, "queues.html", rows=work.queue_rows(self.engine))

    async def change_queue(self, request: web.Request) -> web.Response:
        """Pause or resume a queue."""
        name = self.queue_name(request)
        if request.match_info["verb"] == "pause":
            self.engine.queues.pause(name)
            raise await back(request, "/queues", "paused")
        self.engine.queues.resume(name)
        raise await back(request, "/queues", "resumed")

    async def confirm_purge(self, request: web.Request) -> web.Response:
        """Ask for the queue's name before purging it."""
        return self._purge_page(request, "")

    async def purge(self, request: web.Request) -> web.Response:
        """Purge a queue whose name was typed."""
        typed = str((await request.post()).get("name", "")).strip()
        if typed != request.match_info["queue"]:
            return self._purge_page(request, f"You typed “{typed}”. Nothing was purged.")
        self.engine.queues.purge(self.queue_name(request))
        raise await back(request, "/queues", "purged")

    def _purge_page(self, request: web.Request, problem: str) -> web.Response:
        queue = request.match_info["queue"]
        self.engine.queues.get(self.queue_name(request))
        row = next(row for row in work.queue_rows(self.engine) if row["id"] == queue)
        page = self.page(request, "purge.html", row=row, problem=problem)
        page.set_status(409 if problem else 200)
        return page
