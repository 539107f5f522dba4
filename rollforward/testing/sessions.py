"""Services and apps of a session of pytest, from its settings."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flask import Flask

from rollforward.local import target
from rollforward.local.services.datastore import KINDS
from rollforward.testing.kit import NoAppError
from rollforward.testing.services import Services, running_services

_EMULATOR = "DATASTORE_EMULATOR_HOST"


@contextmanager
def running(root: Path, app: str, queues: str, datastore: str) -> Iterator[Services]:
    """Run the services with the queues of an app.

    Args:
        app, queues, datastore: The settings of the same names, or "".

    Raises:
        ValueError: a setting is wrong.
        ServiceMissingError: an emulator is not installed; says how to get it.
    """
    kind = datastore or "datastore"
    if kind not in KINDS:
        raise ValueError(f"rollforward_datastore must be one of {', '.join(KINDS)}, got {kind!r}")
    with running_services(kind, _queues_of(root, app, queues)) as services:
        usual = os.environ.get(_EMULATOR)
        os.environ[_EMULATOR] = services.datastore  # Without it ndb counts in an endless loop.
        try:
            yield services
        finally:
            if usual is None:
                del os.environ[_EMULATOR]
            else:
                os.environ[_EMULATOR] = usual


def app_of(text: str, root: Path) -> Flask:
    """Return the app that the settings name.

    Raises:
        NoAppError: they name none, or something else.
    """
    if not text:
        raise NoAppError(
            'name the app under test in the ini file, as in rollforward_app = "shop:serve", or '
            "write a fixture rollforward_app that returns what rf.serve(app, ...) returns"
        )
    named = target.find(text, root, queues=None, cron=None)
    module, _, name = named.text.partition(":")
    served = getattr(importlib.import_module(module), name)
    app = served if isinstance(served, Flask) else served()
    if not isinstance(app, Flask):
        raise NoAppError(f"{text} must be what rf.serve(app, ...) returns, got {app!r:.100}")
    return app


def _queues_of(root: Path, app: str, queues: str) -> Path:
    asked = Path(queues) if queues else None
    if app:
        return target.find(app, root, queues=asked, cron=None).queues_file
    path = (root / asked if asked else root / "queue.yaml").resolve()
    if asked and not path.is_file():
        raise ValueError(f"rollforward_queues must name a file, got {path}")
    return path if path.is_file() else target.DEFAULT_QUEUES
