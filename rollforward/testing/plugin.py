"""Plugin of pytest: the fixture `rollforward` and the settings of its app.

    [tool.pytest.ini_options]
    rollforward_app = "shop:serve"

pytest loads this module in each session, so it imports the kit only when a test uses it. Emulators
start with the first of these tests, once in each worker of pytest-xdist, and end with the session.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flask import Flask

    from rollforward.testing.kit import Rollforward
    from rollforward.testing.services import Services

_APP, _QUEUES, _DATASTORE = "rollforward_app", "rollforward_queues", "rollforward_datastore"
_EXPLORED = "rollforward explored"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings."""
    parser.addini(_APP, "the app under test, module:callable, such as shop:serve")
    parser.addini(_QUEUES, "the app's queue.yaml; default: beside the app")
    parser.addini(_DATASTORE, "datastore (default; the first commit wins) or firestore (it locks)")


def pytest_configure(config: pytest.Config) -> None:
    """Let tests import the app that the settings name, from the folder of the settings."""
    root = str(config.rootpath)
    if config.getini(_APP) and root not in sys.path:
        sys.path.insert(0, root)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts of each exploration that passed."""
    lines = [
        f"{report.nodeid}: {text}"
        for report in terminalreporter.stats.get("passed", [])
        for name, text in getattr(report, "user_properties", [])
        if name == _EXPLORED
    ]
    if lines:
        terminalreporter.section("rollforward")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def rollforward_services(request: pytest.FixtureRequest) -> Iterator[Services]:
    """Services of this session: Datastore, Cloud Tasks, memcached."""
    from rollforward.testing import sessions

    config = request.config
    with sessions.running(
        config.rootpath, config.getini(_APP), config.getini(_QUEUES), config.getini(_DATASTORE)
    ) as services:
        yield services


@pytest.fixture(scope="session")
def rollforward_app(request: pytest.FixtureRequest) -> Flask:
    """App under test, as `rf.serve` returns it: override this, or name it in the ini file."""
    from rollforward.testing import sessions

    return sessions.app_of(request.config.getini(_APP), Path(request.config.rootpath))


@pytest.fixture(scope="session")
def rollforward_fakes() -> dict[type, object]:
    """Services of the app by type that tests use in place of the real ones; override this."""
    return {}


@pytest.fixture(scope="session")
def _rollforward_kits() -> Iterator[list[Any]]:
    """The kit of the test before: an app that serves the whole session is opened once."""
    kits: list[Any] = []
    yield kits
    for kit in kits:
        kit.close()


@pytest.fixture
def rollforward(
    request: pytest.FixtureRequest,
    rollforward_app: Flask,
    rollforward_services: Services,
    rollforward_fakes: dict[type, object],
    _rollforward_kits: list[Any],
) -> Iterator[Rollforward]:
    """App on real services, empty at the start of each test, with a context open."""
    from rollforward.testing.kit import Rollforward

    kits = _rollforward_kits
    if kits and (kits[0].app is not rollforward_app or kits[0].fakes is not rollforward_fakes):
        kits.pop().close()
    if not kits:
        kits.append(Rollforward(rollforward_app, rollforward_services, rollforward_fakes))
    [kit] = kits
    kit.reset()
    kit.on_explored = lambda counts: request.node.user_properties.append((_EXPLORED, str(counts)))
    with kit.clients.context():
        yield kit
    kit.clients.process_state.clear()
