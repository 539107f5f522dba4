"""Whether the app can work: its services are asked for all who want to know."""

from __future__ import annotations

from unittest.mock import ANY

import pytest

from rollforward.flask.endpoints import health
from tests.handlers.conftest import app_with, on_app_engine
from tests.infra.world import World


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
@pytest.mark.parametrize(
    ("away", "problem"),
    [
        ({"tasks"}, "Cloud Tasks does not answer."),
        ({"datastore", "memcached"}, "Datastore does not answer."),
        ({"datastore", "tasks"}, "Datastore and Cloud Tasks do not answer."),
        ({"memcached"}, ""),
        (set(), ""),
    ],
)
@pytest.mark.parametrize(
    ("is_local", "remedy"), [(True, "it continues from its last save"), (False, "is kept")]
)
def test_readiness_names_what_is_needed_and_away(
    world: World, monkeypatch: pytest.MonkeyPatch, away: set[str], problem: str, is_local: bool,
    remedy: str,
) -> None:  # fmt: skip
    """With the remedy for a laptop, or what a deployed app does without it."""
    states = {name: name not in away for name in ("datastore", "tasks", "memcached")}
    monkeypatch.setattr(health, "_check", lambda: states)
    app = app_with(world, settings=world.settings if is_local else on_app_engine(world))

    answer = app.test_client().get("/health/ready", base_url="https://localhost")

    said = answer.json or {}
    assert answer.status_code == (503 if problem else 200)
    assert said == {"ready": not problem, **states, **({"advice": ANY} if problem else {})}
    assert said.get("advice", "").startswith(problem)
    assert (remedy in said.get("advice", "")) is bool(problem)
