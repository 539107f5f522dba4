"""The cron jobs: schedules and last results; run now, paused, resumed."""

from aiohttp import web

from rollforward.local.console.frame import Route, Section, back


class CronJobs(Section):
    """The cron jobs: schedules and last results; run now, paused, resumed."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/cron", self.cron),
            ("POST", "/cron/{verb:run|pause|resume}", self.change_cron),
        ]

    async def cron(self, request: web.Request) -> web.Response:
        """Show the cron jobs."""
        jobs = list(self.platform.cron.jobs.values())
        return self.page(request, "cron.html", jobs=jobs, problem=self.platform.cron.note)

    async def change_cron(self, request: web.Request) -> web.Response:
        """Run, pause or resume a job."""
        name = str((await request.post()).get("name", ""))
        cron, verb = self.platform.cron, request.match_info["verb"]
        if verb == "run":
            run = await cron.run_now(name)
            raise await back(request, "/cron", "cron-ok" if run.ok else "cron-failed")
        cron.pause(name, verb == "pause")
        raise await back(request, "/cron", "paused" if verb == "pause" else "resumed")
