"""A deployed app with a console, behind a real HTTP server, for commands to call."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask, Request
from werkzeug.serving import make_server

from rollforward import flask as endpoints
from rollforward.cli import main
from rollforward.console import Console, Role
from tests.infra.world import Services
from tests.rollforward.console.conftest import Desk, desk

READER, OPERATOR = "reader.token", "operator.token"
ROLES = {f"Bearer {READER}": Role.READ, f"Bearer {OPERATOR}": Role.OPERATE}

__all__ = ["desk"]  # A fixture.


def access(request: Request) -> Role | None:
    """Give the role of a token, as one that a service has verified."""
    return ROLES.get(request.headers.get("Authorization", ""))


@dataclass
class Shop:
    """A deployed app, and the command line of its operator."""

    desk: Desk
    url: str
    capsys: pytest.CaptureFixture[str]
    token: str = OPERATOR

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command against the app; return standard output, or the error."""
        actual = main([*arguments, "--url", self.url, "--token", self.token])
        output = self.capsys.readouterr()
        assert actual == code, output.err
        assert self.token not in output.out + output.err
        if code:
            assert output.out == ""
            return output.err
        assert output.err == ""
        return output.out

    def json(self, *arguments: str) -> Any:
        """Run a command with --json."""
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture
def shop(desk: Desk, services: Services, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    """The desk's app, with a console that admits by token."""
    app = Flask("deployed")
    world = desk.world
    endpoints.mount(
        app, world.settings, world.clients, world.registry, console=Console(access=access)
    )
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Shop(desk, f"http://127.0.0.1:{server.server_port}", capsys)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
