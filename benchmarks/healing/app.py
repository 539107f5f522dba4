"""The demo app with a pull queue; HEALING_TASKS is the address of a proxy to Cloud Tasks.

CHAOS_CLOCKS names a folder with the clock offsets of its processes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from flask import Flask

import main
from benchmarks.chaos.clocks import FOLDER, MovedClock
from handlers.settings import DemoSettings
from pipelines.registry import APP
from rollforward import flask as endpoints
from rollforward.pull_queues import PullQueue
from rollforward.registry import Registry

WORK = PullQueue("healing", max_deliveries=1000)


def serve() -> Flask:
    """Return the app for gunicorn."""
    if proxy := os.environ.get("HEALING_TASKS"):
        os.environ["CLOUD_TASKS_EMULATOR_HOST"] = proxy
    settings, registry = DemoSettings.from_environment(os.environ), Registry(*APP.declared, WORK)
    clients = main.open_clients(settings, registry)
    if folder := os.environ.get(FOLDER):
        clients = replace(clients, clock=MovedClock(Path(folder)))
    app = main.create_app(settings, clients, registry)
    endpoints.start(settings, clients, registry)
    return app
