"""Two versions of a pipeline and of schedules, rolled forward and back under load, as processes.

Records and arguments have fields that only the second version knows, and so have schedules of
users. Workers are killed, and at the end the whole instance of the first version with its leases.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from google.cloud import ndb

from rollforward.schedules.entities import ScheduleRow, row_key
from rollforward.tasks.dead_task_entities import open_dead_tasks
from tests.infra.runs.sampling import kills
from tests.infra.stack import until
from tests.process.versions.deployment import Deployment, deployed
from tests.process.versions.station import second_station as station
from tests.process.versions.station.first_station import StationNotice, town_of

# The shares of the first version: rolled forward, back, and forward again.
SHARES = (1, 0.5, 0, 0.5, 1, 0.5, 0)
KILLED_AT = {1: "first", 3: "second"}
BATCH, PUSHED_AT_ONCE = 120, 20
USERS = 8  # Whose tick comes in a phase, of each schedule.
TIMEOUT_S = 150.0

pytestmark = [pytest.mark.process, kills]


@pytest.fixture
def deployment(
    tmp_path: Path, datastore_address: Callable[[str], str], memcached_address: str | None
) -> Iterator[Deployment]:
    targets = {
        version: f"tests.process.versions.station.{version}_station:serve()"
        for version in ("first", "second")
    }
    address = datastore_address("datastore")
    with deployed(Deployment, tmp_path, targets, address, memcached_address) as started:
        yield started


@pytest.mark.timeout(400)
def test_streams_and_schedules_are_rolled_forward_and_back_under_load(
    deployment: Deployment, record_property: Callable[[str, object], None]
) -> None:
    """H9: each record counts once, and each tick has one task, whichever version is at work."""
    users: list[str] = []
    for phase, share in enumerate(SHARES):
        deployment.router.split(first=share, second=1 - share)
        users += put_due(phase, has_greeting=share < 1, has_alerts=phase > 0)
        if phase in KILLED_AT:
            deployment.kill_worker(KILLED_AT[phase])
        for first in range(phase * BATCH, (phase + 1) * BATCH, PUSHED_AT_ONCE):
            push(deployment, first)
        deployment.sweep()
    deployment.kill_instance("first")

    until(lambda: is_over(deployment, len(users)), TIMEOUT_S)

    numbers = range(BATCH * len(SHARES))
    for computation, key_of in (("rain", town_of), ("region", lambda n: town_of(n)[0])):
        expected: dict[str, list[int]] = {}
        for number in numbers:
            expected.setdefault(key_of(number), []).append(number)
        states = dict(station.STATION.states(deployment.clients, computation))
        assert {key: sorted(state["numbers"]) for key, state in states.items()} == expected
    measured = [number for state in states.values() for number in state.get("measured", ())]
    record_property("measured", len(measured))
    assert 0 < len(measured) == len(set(measured)) < len(numbers)
    sent = Counter(notice.user for notice in StationNotice.query().fetch())
    assert sent == Counter(dict.fromkeys(users, 1))
    assert open_dead_tasks().fetch(1) == []


def put_due(phase: int, *, has_greeting: bool, has_alerts: bool) -> list[str]:
    """Store schedules whose tick is due; return the users."""
    due = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - datetime.timedelta(minutes=5)
    more = ', "greeting": "Good morning"' if has_greeting else ""
    rows = [
        ScheduleRow(
            key=row_key(name, user), cron="0 0 1 1 *", tz="UTC", next_at=due, revision="r",
            body=f'{{"user": "{user}"{more if name == "notices" else ""}}}',
        )
        for name in (("notices", "alerts") if has_alerts else ("notices",))
        for user in (f"{name}-{phase}-{number}" for number in range(USERS))
    ]  # fmt: skip
    ndb.put_multi(rows)
    return [row.key.id().partition("|")[2] for row in rows]


def push(deployment: Deployment, first: int) -> None:
    """Push records, again until a version answers: a repeated record is dropped by its id."""
    url = f"{deployment.router.url}/push/{first}/{first + PUSHED_AT_ONCE}"
    until(lambda: requests.get(url, timeout=30).status_code == 200, TIMEOUT_S, 0.05)


def is_over(deployment: Deployment, notices: int) -> bool:
    """Return whether nothing waits any more; cron has done its part, as it does each minute."""
    deployment.run_waiting()
    deployment.sweep()
    waiting = station.STATION.status(deployment.clients).computations.values()
    sent = len(StationNotice.query().fetch(keys_only=True))
    engine = deployment.queue.engine
    is_idle = engine.is_idle(engine.place.queue_name("default"), with_scheduled=True)
    return sent >= notices and is_idle and all(each.waiting == 0 for each in waiting)
