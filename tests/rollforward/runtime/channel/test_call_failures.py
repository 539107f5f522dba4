"""Calls that fail: counted by service, method and code, and recent for a minute."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.runtime.channel.call_failures import (
    MAX_RECENT,
    RECENT_S,
    CallFailure,
    CallFailures,
)
from rollforward.testing.injection import ERROR
from tests.infra.world import World
from tests.rollforward.tasks.reminders import one_emulator

DATASTORE = "google.datastore.v1.Datastore"
COMMIT = CallFailure("Datastore", "Commit", "UNAVAILABLE")


class Note(ndb.Model):
    """Something to write."""


@pytest.mark.fast
def test_failures_of_a_service_are_recent_for_a_minute() -> None:
    """The most frequent ones first; all are told of."""
    at_s, told = [0.0], list[CallFailure]()
    failures = CallFailures(lambda: at_s[0])
    failures.on_failure = told.append
    failures.note(DATASTORE, "Lookup", "INTERNAL")
    for at_s[0] in (10.0, 20.0):
        failures.note(DATASTORE, "Commit", "UNAVAILABLE")

    lookup = CallFailure("Datastore", "Lookup", "INTERNAL")
    assert failures.recent() == [(COMMIT, 2), (lookup, 1)]
    at_s[0] = RECENT_S + 1
    assert failures.recent() == [(COMMIT, 2)]
    at_s[0] = 2 * RECENT_S
    assert failures.recent() == []
    assert told == [lookup, COMMIT, COMMIT]


@pytest.mark.fast
@pytest.mark.parametrize("code", ["ABORTED", "ALREADY_EXISTS", "NOT_FOUND", "INVALID_ARGUMENT"])
def test_an_answer_to_one_request_makes_no_service_sick(code: str) -> None:
    """It is told of: its rate may say something."""
    told = list[CallFailure]()
    failures = CallFailures()
    failures.on_failure = told.append

    failures.note("google.cloud.tasks.v2.CloudTasks", "CreateTask", code)

    assert failures.recent() == []
    assert told == [("Cloud Tasks", "CreateTask", code)]


@pytest.mark.fast
def test_an_outage_of_hours_takes_a_bounded_room() -> None:
    """As many calls fail as are made."""
    failures = CallFailures(lambda: 0.0)
    for _ in range(MAX_RECENT + 5):
        failures.note(DATASTORE, "Commit", "UNAVAILABLE")

    assert failures.recent() == [(COMMIT, MAX_RECENT)]


@one_emulator
def test_the_meter_counts_calls_that_fail(world: World) -> None:
    """In a transaction and outside of one; a call that succeeds is none."""
    failures = world.clients.meter.failures
    with world.context():
        Note(id="a").put()
        assert failures.recent() == []
        world.plan.break_next("Commit", ERROR, times=2)
        for _ in range(2):
            with pytest.raises(rpc_errors.ServiceUnavailable):
                Note(id="a").put()

    assert failures.recent() == [(COMMIT, 2)]
