"""What /metrics says of deliveries, who may read it, and that counting costs no call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from rollforward.tasks import Task
from rollforward.tasks.errors import OtherVersionError, Reject, Retry, Unavailable
from rollforward.telemetry.metrics import Outcome
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.handlers.conftest import Queue, app_with, on_app_engine, on_cloud_run
from tests.infra.world import World
from tests.rollforward.flask.acts import PATH, Act, Work, attempt, one_emulator

pytestmark = one_emulator

READER = "collector@my-project.iam.gserviceaccount.com"
AUDIENCE = "https://shop.example"


def samples(world: World, app: Flask | None = None) -> dict[str, float]:
    """Return the samples of deliveries."""
    text = (app or world.app).test_client().get("/metrics", headers=world.cron_headers()).text
    lines = [line for line in text.splitlines() if line.startswith("task_")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def total(samples: dict[str, float], *parts: str) -> float:
    return sum(value for name, value in samples.items() if all(part in name for part in parts))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        *((None, Outcome.DONE), (KeyError("bug"), Outcome.FAILED), (Reject("no"), Outcome.DEAD)),
        *((Retry("race"), Outcome.LOST_RACE), (Retry("later", after_s=9), Outcome.WAITING)),
        *((OtherVersionError("x"), Outcome.OTHER_VERSION), (Unavailable("x"), Outcome.UNAVAILABLE)),
    ],
)
def test_each_way_to_end_is_counted(
    world: World, app: Flask, work: Work, error: Exception | None, outcome: Outcome
) -> None:
    """Once, by task and queue."""
    work.raises = error
    Queue(world, app).deliver(PATH)

    found = samples(world, app)
    assert total(found, "task_deliveries_total", f'outcome="{outcome.value}"') == 1
    assert total(found, "task_deliveries_total") == 1
    assert total(found, "task_duration_seconds_count", f'task="{PATH}"', 'queue="default"') == 1


def test_deliveries_that_share_an_app_context_are_counted_by_their_own_ends(
    world: World, app: Flask, work: Work
) -> None:
    """A program that pushed one: after the first failure all others were counted as failed."""
    with app.app_context():
        for work.raises in (KeyError("bug"), None):
            Queue(world, app).deliver(PATH, task_name=f"t-{work.raises}")

    found = samples(world, app)
    outcomes = (Outcome.FAILED, Outcome.DONE)
    counts = [total(found, "task_deliveries_total", f'outcome="{end.value}"') for end in outcomes]
    assert counts == [1, 1]


def test_a_delay_is_from_the_time_a_task_was_due(world: World, app: Flask, work: Work) -> None:
    """A task that is due in an hour has no delay then, and twenty seconds twenty seconds later."""
    world.app = app
    task: Task[Act] = Task(PATH, "default", Act, work)
    task.enqueue(world.clients, Act("x"), delay_s=3_600)
    world.clock.sleep(3_620)
    assert attempt(world) == 204

    found = samples(world)
    assert total(found, "task_delay_seconds_sum") == pytest.approx(20, abs=0.1)
    assert total(found, "task_delay_seconds_count") == 1


def test_paths_of_no_task_make_no_series(world: World, queue: Queue) -> None:
    """They are counted together."""
    for number in range(5):
        queue.deliver(f"/tasks/of-another-version/{number}", task_name=f"t{number}")

    found = samples(world, queue.app)
    assert total(found, "task_deliveries_total", 'task="(unknown)"') == 5


def test_counting_makes_no_remote_call(world: World, queue: Queue, work: Work) -> None:
    """The calls of a delivery are those of its work: this one makes none."""
    with world.plan.watched():
        assert queue.deliver(PATH).status_code == 204

    assert world.plan.calls == []
    assert total(samples(world, queue.app), "task_deliveries_total") == 1


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "-1e400"])
def test_a_queue_that_does_not_say_when_leaves_no_delay(queue: Queue, value: str) -> None:
    """The rest is counted."""
    assert queue.deliver(PATH, TaskETA=value).status_code == 204

    found = samples(queue.world, queue.app)
    assert total(found, "task_delay_seconds_count") == 0
    assert total(found, "task_duration_seconds_count") == 1


# Who may read


def read_by(world: World, place: Callable[[World], Any], **token: Any) -> int:
    """Return the status of a read of the metrics, by a token of some account."""
    settings = replace(place(world), metrics_accounts=(READER,), metrics_audience=AUDIENCE)
    app = app_with(world, settings=settings)
    signed = world.engine.tokens.oidc_token(token.get("account", READER), token["audience"])
    headers = {"Authorization": f"Bearer {signed}"}
    return app.test_client().get(token.get("path", "/metrics"), headers=headers).status_code


@pytest.mark.parametrize("place", [on_app_engine, on_cloud_run])
@pytest.mark.parametrize("path", ["/metrics", "/control/runs"])
def test_accounts_that_are_named_may_read(world: World, place: Any, path: str) -> None:
    """A collector or a person with a token, on App Engine as well."""
    assert read_by(world, place, audience=AUDIENCE, path=path) != 403


@pytest.mark.parametrize("place", [on_app_engine, on_cloud_run])
@pytest.mark.parametrize(
    "token",
    [
        {"audience": "https://another.example"},
        {"audience": AUDIENCE, "account": "stranger@example.com"},
        {"audience": AUDIENCE, "path": "/cron/outbox/sweep"},
        {"audience": BASE_URL, "account": "stranger@example.com"},
    ],
)
def test_others_may_not(world: World, place: Any, token: dict[str, str]) -> None:
    """Another audience, another account, another route."""
    assert read_by(world, place, **token) == 403


def test_the_scheduler_still_may(world: World) -> None:
    """By our own account, and on App Engine by its front end's header."""
    assert read_by(world, on_cloud_run, audience=BASE_URL, account=ACCOUNT) == 200
    settings = replace(on_app_engine(world), metrics_accounts=(READER,), metrics_audience="x")
    app = app_with(world, settings=settings)
    headers = {"X-Appengine-Cron": "true"}
    assert app.test_client().get("/metrics", headers=headers).status_code == 200


def test_nobody_is_named_by_default(world: World) -> None:
    """On App Engine no token is taken then."""
    app = app_with(world, settings=on_app_engine(world))
    token = world.engine.tokens.oidc_token(READER, AUDIENCE)
    headers = {"Authorization": f"Bearer {token}"}

    assert app.test_client().get("/metrics", headers=headers).status_code == 403
