"""Whether the app can work: its services are asked for all who want to know."""

from __future__ import annotations

import threading
from unittest.mock import ANY

import pytest

from rollforward.flask.endpoints import health
from tests.handlers.conftest import app_with, on_app_engine
from tests.infra.world import World


def test_services_are_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask whether the app is ready, as often as they like."""
    now_s, asked_at_s = [100.0], list[float]()

    def ask() -> dict[str, bool]:
        asked_at_s.append(now_s[0])
        return {"datastore": len(asked_at_s) == 1}

    monkeypatch.setattr(health, "_check", ask)
    states = health.ServiceHealth(elapsed_s=lambda: now_s[0])
    answers = []
    for now_s[0] in (100.0, 100.9, 101.1, 101.5, 102.2):
        answers.append(states.states()["datastore"])

    assert asked_at_s == [100.0, 101.1, 102.2]
    assert answers == [True, True, False, False, False]


def test_nobody_waits_for_a_service_that_another_caller_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that does not answer takes seconds to ask; the answer of before is there."""
    answers: list[dict[str, bool]] = []
    now_s = [100.0]

    def ask() -> dict[str, bool]:
        if now_s[0] == 100.0:
            return {"datastore": True}
        other = threading.Thread(target=lambda: answers.append(states.states()), daemon=True)
        other.start()
        other.join(10)
        return {"datastore": False}

    monkeypatch.setattr(health, "_check", ask)
    states = health.ServiceHealth(elapsed_s=lambda: now_s[0])
    states.states()
    now_s[0] = 102.0

    assert states.states() == {"datastore": False}
    assert answers == [{"datastore": True}]


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
