"""The console of an emulator that runs alone: its queues, its tasks, and nothing else."""

from dataclasses import dataclass, field

from aiohttp import web

from rollforward.local.cloudtasks.emulator import Emulator
from rollforward.local.console.frame import Section
from rollforward.local.console.pages.bulk import BulkActions
from rollforward.local.console.pages.queues import Queues
from rollforward.local.console.pages.tasks import Tasks
from rollforward.local.console.screen import Screen
from rollforward.local.console.server import Console
from rollforward.local.traces.store import TraceStore

_MENU = [("/queues", "Queues"), ("/tasks", "Tasks")]
_SECTIONS: list[type[Section]] = [Queues, Tasks, BulkActions]


@dataclass(frozen=True)
class StandaloneEmulator:
    """An emulator without the rest of the local platform."""

    tasks: Emulator
    project: str
    traces: TraceStore = field(default_factory=TraceStore)
    app_url: str = ""


class TasksConsole(Console):
    """The pages of queues and tasks, on the loopback interface."""

    platform: StandaloneEmulator

    def new_screen(self) -> Screen:
        """Return the screen of these pages."""
        return Screen(self.platform, self.guards, self.platform.project, _MENU)

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return the routes of the pages; the first one is for queues."""
        pages = [route for section in _SECTIONS for route in section(self.screen).routes()]
        return [web.get("/", self._first_page), *pages]

    async def _first_page(self, request: web.Request) -> web.Response:
        raise web.HTTPFound("/queues")
