"""Access to the app's clients, settings and registry, for the handlers of a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flask import Blueprint, Flask, current_app, has_app_context, request

from rollforward.flask.oidc import TokenVerifier
from rollforward.flask.requests_in_progress import RequestsInProgress
from rollforward.flask.settings import Settings
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.runtime.process.current import current_clients
from rollforward.telemetry.gauges import GaugeExport
from rollforward.telemetry.metrics import TaskMetrics

MACHINE_PREFIXES = ("/tasks/", "/cron/", "/control/")
MACHINE_PATHS = ("/metrics",)
# An app may have routes of its own under the same prefixes.
API_BLUEPRINTS = ("rollforward_pull_queues", "rollforward_streams")
# Of all blueprints of the library.
BLUEPRINT_PREFIX = "rollforward_"
# The console's; rollforward/console mounts them, if the app asks for one.
CONSOLE, CONSOLE_API = "rollforward_console", "rollforward_console_api"
MACHINE_BLUEPRINTS = (
    *("rollforward_tasks", "rollforward_cron", "rollforward_metrics", "rollforward_runs"),
)


@dataclass(frozen=True)
class Wiring:
    """The settings, clients and registry of this process."""

    settings: Settings
    clients: Clients
    registry: Registry
    api_prefix: str | None = None  # Below it an app takes JSON alone, without cookies.
    verifier: TokenVerifier = field(init=False)
    task_metrics: TaskMetrics = field(init=False)
    gauge_export: GaugeExport = field(default_factory=GaugeExport, init=False)
    requests_in_progress: RequestsInProgress = field(init=False)

    def __post_init__(self) -> None:
        verifier = TokenVerifier(self.settings.certs_url, self.settings.issuers)
        object.__setattr__(self, "verifier", verifier)
        task_metrics = TaskMetrics(self.settings.processes_folder)
        object.__setattr__(self, "task_metrics", task_metrics)
        self.clients.meter.failures.on_failure = task_metrics.note_failed_call
        in_progress = RequestsInProgress(self.clients.process_state)
        object.__setattr__(self, "requests_in_progress", in_progress)


def _is_open() -> bool:
    return "wiring" in current_app.extensions


def wiring() -> Wiring:
    """Return the wiring of the current app."""
    return current_app.extensions["wiring"]  # type: ignore[no-any-return]


def clients() -> Clients:
    """Return the clients of the current request, task or shell.

    Raises:
        NoClientsError: none of them runs in this thread.
    """
    return wiring().clients if has_app_context() and _is_open() else current_clients()


def settings() -> Settings:
    """Return how this process runs."""
    return wiring().settings


def registry() -> Registry:
    """Return the jobs and tasks that this app knows."""
    return wiring().registry


def find_part(pattern: str, name: str) -> Any:
    """Return a part of the app by its pattern and name; None: it has none of this name."""
    return next((part for part in registry().parts(pattern) if part.name == name), None)


def mount_for(app: Flask, bp: Blueprint, pattern: str) -> None:
    """Mount a blueprint if the registry of the app has parts of a pattern."""
    if app.extensions["wiring"].registry.parts(pattern):
        app.register_blueprint(bp)


def request_notes() -> dict[str, Any]:
    """Return the notes of the library on the current request.

    `g` has none: where a program has pushed an app context, all requests of its thread share it.
    """
    notes: dict[str, Any] = request.environ.setdefault("rollforward.notes", {})
    return notes


def is_machine_path() -> bool:
    """Return whether a machine is asking one of our endpoints: it gets statuses, not pages."""
    if request.url_rule is not None:
        return request.blueprint in MACHINE_BLUEPRINTS
    return request.path.startswith(MACHINE_PREFIXES) or request.path in MACHINE_PATHS


def is_library_endpoint() -> bool:
    """Return whether an endpoint of the library is asked, and not a page of the app."""
    return (request.blueprint or "").startswith(BLUEPRINT_PREFIX)


def is_api_path() -> bool:
    """Return whether a program is asking: it gets JSON, in errors too."""
    if request.blueprint in API_BLUEPRINTS:
        return True
    if request.blueprint == CONSOLE_API:  # For others there is no such API.
        return current_app.extensions[CONSOLE].caller() is not None
    prefix = wiring().api_prefix
    return prefix is not None and request.path.startswith(prefix)
