"""The kit on the services of this session, without its plugin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask

from rollforward.testing import Rollforward
from tests.infra.world import Services
from tests.rollforward.testing.apps import bookings


class Till:
    """A payment provider that counts."""

    def __init__(self) -> None:
        self.charges: list[int] = []

    def charge(self, cents: int, key: str | None = None) -> None:
        self.charges.append(cents)


@pytest.fixture(scope="session")
def till() -> Till:
    return Till()


@pytest.fixture(scope="session")
def app(till: Till) -> Flask:
    return bookings.make(till)


@pytest.fixture
def kit(app: Flask, services: Services, till: Till) -> Iterator[Rollforward]:
    """An app in an empty store, with a context open."""
    kit = Rollforward(app, services)
    kit.reset()
    till.charges.clear()
    with kit.clients.context():
        yield kit
    kit.close()
