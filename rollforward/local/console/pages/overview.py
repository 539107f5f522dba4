"""The first page: services, load, and what needs attention."""

import asyncio
import time
from typing import Any

from aiohttp import web

from rollforward.local.console.frame import Route, Section, in_time
from rollforward.local.console.reading import work
from rollforward.local.console.reading.outbox import Waiting
from rollforward.look import words
from rollforward.look.attention import Attention
from rollforward.look.words import pluralize

_AILMENTS = {"stopped": "has stopped", "silent": "does not answer"}


class Overview(Section):
    """The first page: services, load, and what needs attention."""

    def table(self) -> list[Route]:
        """Return method, path and handler of each route."""
        return [
            ("GET", "/", self.overview),
        ]

    async def overview(self, request: web.Request) -> web.Response:
        """Show services, load, and what needs attention."""
        rows = work.queue_rows(self.engine)
        dead, late = await asyncio.gather(self._dead_or_none(), self._late_or_none())
        samples = self.screen.samples
        graphs = [
            ("Depth", "tasks", list(samples.depth)),
            ("Created", "per second", list(samples.created)),
            ("Ended", "per second", list(samples.ended)),
        ]
        return self.page(
            request,
            "overview.html",
            services=self.platform.services(),
            totals=work.totals(rows),
            graphs=graphs,
            dead_count=dead,
            mail_count=self.platform.mail.count(),
            attention=self._attention(rows, dead, late),
            environment=self.platform.shell_environment(),
        )

    def _attention(
        self,
        rows: list[dict[str, Any]],
        dead: int | None,
        late: list[Waiting] | None,
    ) -> list[Attention]:
        warnings = [
            Attention("✕", "failed", f"{service.name} {_AILMENTS[service.state]}", "/")
            for service in self.platform.services()
            if service.state in _AILMENTS
        ]
        warnings += work.attention(self.engine, rows)
        if dead:
            text = f"{pluralize(dead, 'dead task')} to replay or delete"
            warnings.append(Attention("✕", "failed", text, "/dead"))
        if late:
            since = words.age(time.time() - late[0].created)
            text = f"{pluralize(len(late), 'row')} in the outbox, the oldest for {since}"
            warnings.append(Attention("◷", "retrying", text, "/outbox"))
        for job in self.platform.cron.jobs.values():
            if job.last_run is not None and not job.last_run.ok:
                text = f"Cron {job.url} failed last time"
                warnings.append(Attention("✕", "failed", text, "/cron"))
        if problem := self.platform.tasks.queue_yaml_problem:
            warnings.append(
                Attention("✕", "failed", f"queue.yaml not applied: {problem}", "/queues")
            )
        with self.engine.lock:
            rules = self.engine.faults.all()
        if rules or self.platform.mail.faults.on:
            warnings.append(Attention("↻", "retrying", "Faults are switched on", "/faults"))
        return warnings

    async def _late_or_none(self) -> list[Waiting] | None:
        """Return work that has waited too long, None if Datastore does not say in time."""
        return await in_time(self.screen.outbox.late(self.platform.datastore_address))

    async def _dead_or_none(self) -> int | None:
        """Return the number of open dead tasks, None if Datastore does not say in time."""
        address = self.platform.datastore_address
        return await in_time(self.screen.dead_tasks.count(address))
