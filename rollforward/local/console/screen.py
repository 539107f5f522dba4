"""The screen of the console: what pages read and move, and the templates that show it."""

import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

import jinja2
from aiohttp import web

from rollforward.local.console.fault_words import FAULTS
from rollforward.local.console.guards import Guards
from rollforward.local.console.platform import Context, Platform, TasksPlatform
from rollforward.local.console.reading.datastore_reader import DatastoreReader
from rollforward.local.console.reading.dead_tasks import DeadTasks
from rollforward.local.console.reading.declared_kinds import LIBRARY
from rollforward.local.console.reading.entities import Entities
from rollforward.local.console.reading.entity_changes import EntityChanges
from rollforward.local.console.reading.outbox import Outbox
from rollforward.local.console.reading.work import Samples
from rollforward.look.pages import environment, etag_of

MENU = [
    ("/", "Overview"),
    ("/queues", "Queues"),
    ("/tasks", "Tasks"),
    ("/latency", "Latency"),
    ("/workers", "Workers"),
    ("/runs", "Runs"),
    ("/dead", "Dead tasks"),
    ("/outbox", "Outbox"),
    ("/data", "Data"),
    ("/limits", "Limits"),
    ("/costs", "Costs"),
    ("/logs", "Logs"),
    ("/traces", "Traces"),
    ("/mail", "Mail"),
    ("/cron", "Cron"),
    ("/faults", "Faults"),
]
_MESSAGES = {
    404: "The console has no such page.",
    405: "This address accepts only forms: go back to the page with the button.",
    413: "This form is too large.",
}


class Screen:
    """Renders pages of queues and tasks.

    Args:
        guards: Make the token of each form.
        project: Its name is on every page.
        menu: The addresses and titles of the pages.
    """

    def __init__(
        self,
        platform: TasksPlatform,
        guards: Guards,
        project: str,
        menu: Sequence[tuple[str, str]],
    ) -> None:
        self.platform = platform
        self._guards = guards
        self._project = project
        self._templates = _templates(menu)

    def close(self) -> None:
        """End with the console."""

    def error_page(self, request: web.Request, status: int, message: str) -> web.Response:
        """Return a page that says why not."""
        title = HTTPStatus(status).phrase
        message = message or _MESSAGES.get(status, "The request failed.")
        shown = {"notice": "", "code": status, "title": title, "message": message}
        page = self.render(request, "error.html", **shown)
        page.set_status(status)
        return page

    def render(self, request: web.Request, template: str, **context: object) -> web.Response:
        """Return a page."""
        common: Context = {
            "now": time.time(),
            "path": request.path,
            "csrf": self._guards.token(request),
            "project": self._project,
            "app_url": self.platform.app_url,
        }
        html = self._templates.get_template(template).render(common | context)
        # A mail or a body may hold half a character, which is none in UTF-8.
        content = html.encode(errors="replace")
        tag = etag_of(content)
        if request.method == "GET" and request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag})
        return web.Response(
            body=content, content_type="text/html", charset="utf-8", headers={"ETag": tag}
        )


class PlatformScreen(Screen):
    """Renders all pages, and holds their content."""

    def __init__(self, platform: Platform, guards: Guards) -> None:
        """Show this platform; each form carries a token of the guards."""
        settings = platform.settings
        super().__init__(platform, guards, settings.project, MENU)
        self.samples = Samples(platform.tasks.engine)
        self._reader = DatastoreReader(settings.project, settings.datastore_database)
        self.entities = Entities(self._reader, [LIBRARY, Path.cwd()])
        self.entity_changes = EntityChanges(self._reader)
        self.dead_tasks = DeadTasks(self._reader)
        self.outbox = Outbox(self._reader)

    def close(self) -> None:
        """Close the connection to Datastore."""
        self._reader.close()


def _templates(menu: Sequence[tuple[str, str]]) -> jinja2.Environment:
    templates = environment(Path(__file__).parent / "templates")
    templates.globals.update(FAULTS=FAULTS, MENU=menu, ROOT="")
    return templates
