"""The demo app, which reaches Cloud Tasks where HEALING_TASKS says: through a proxy."""

from __future__ import annotations

import os

from flask import Flask

import main


def serve() -> Flask:
    """Return the app; what gunicorn calls."""
    if proxy := os.environ.get("HEALING_TASKS"):
        os.environ["CLOUD_TASKS_EMULATOR_HOST"] = proxy
    return main.serve()
