"""Error pages when a service fails: they say when to retry, and never show a stack."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as rpc_errors

import main
from rollforward.fork_join import OutcomeUnknownError
from rollforward.tasks import Retry
from tests.infra.world import World

one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)

ERRORS = [
    (rpc_errors.Aborted("a race"), 409),
    (Retry("a race"), 409),
    (rpc_errors.Cancelled("?"), 503),
    (rpc_errors.DataLoss("?"), 503),
    (rpc_errors.DeadlineExceeded("late"), 503),
    (rpc_errors.InternalServerError("sick"), 503),
    (rpc_errors.ResourceExhausted("quota"), 503),
    (rpc_errors.RetryError("gave up", cause=ValueError()), 503),
    (rpc_errors.ServiceUnavailable("away"), 503),
    (rpc_errors.Unknown("?"), 503),
    (OutcomeUnknownError("an insert"), 503),
    (rpc_errors.InvalidArgument("a bug"), 500),
    (KeyError("a bug"), 500),
]


@one_emulator
@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("path", ["/odd", "/api/odd", "/cron/odd"])
def test_an_outcome_that_is_unknown_is_a_503(
    world: World, error: Exception, status: int, path: str
) -> None:
    """H2, S30: each class by name, on a page, in the API and for the scheduler."""

    def odd() -> str:
        raise error

    app = main.create_app(world.settings, world.clients)
    app.add_url_rule(path, view_func=odd)

    answer = app.test_client().get(path)

    assert answer.status_code == status
    assert "Traceback" not in answer.text


@one_emulator
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/counters/clicks", {"POST", "OPTIONS"}),
        ("DELETE", "/api/v1/sums/visitors", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("PUT", "/tasks/sums/write", {"POST"}),
    ],
)
def test_a_method_that_is_none_of_an_address_is_told_those_that_are(
    world: World, method: str, path: str, allowed: set[str]
) -> None:
    """RFC 9110, 15.5.6: on a page, in the API and for the queue."""
    answer = world.app.test_client().open(path, method=method, headers=world.cron_headers())

    assert answer.status_code == 405
    assert set(answer.allow) == allowed
