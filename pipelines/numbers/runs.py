"""Runs: all probes, one after the other, in background tasks.

A run is a run of a job whose items are the probes. They are one page, for pages run side by side
and would measure each other. Then a chain of tasks measures how long tasks are on their way. A row
keeps what was found, and is the run's address.

Lost on failure: nothing. A probe that breaks off is taken again, all of it.

Routes: POST /tasks/continuations/measure-numbers.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google.cloud import ndb

from models.numbers import NumbersRun, newest_runs, numbers_run_key
from pipelines.numbers import echo, results
from pipelines.numbers.probes import PROBES, NotMeasurableError
from rollforward.continuations import job, runs
from rollforward.continuations.sources import NumberSource
from rollforward.datastore import transact
from rollforward.runtime import Clients, naive_utc

MAX_RUNS = 50
# What pages watch: one task takes all probes but the last, and says so after each.
TOPIC = "numbers"
# A run that has not ended by then has been given up by its tasks, and holds up no other.
GIVEN_UP_AFTER_S = 180.0


@dataclass(frozen=True)
class MeasureArgs:
    """Which run to measure for."""

    run_id: str


class RunGoesOnError(Exception):
    """Another run is measuring: two would measure each other. `run_id` is its id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@job(
    "measure-numbers",
    queue="imports",
    source=lambda args: NumberSource(len(PROBES)),
    effect="side_effect",
    page_size=len(PROBES),
)
@contextlib.contextmanager
def measure_numbers(clients: Clients, args: MeasureArgs) -> Iterator[Callable[[int], None]]:
    """Take one probe after the other."""

    def take(number: int) -> None:
        probe = PROBES[number - 1]
        if probe.take is None:
            echo.begin(clients, args.run_id)
            return
        try:
            samples, note = probe.take(clients), ""
        except NotMeasurableError as error:
            samples, note = [], str(error)
        results.record(args.run_id, probe.name, samples, note, at=clients.clock.now())
        clients.publish(TOPIC)

    yield take


def start(clients: Clients, run_id: str, *, stack: str) -> None:
    """Begin a run, once for its id.

    Args:
        stack: What it runs on, for its page.

    Raises:
        RunGoesOnError: another one is measuring.
    """
    going_on = newest()
    if going_on is not None and going_on.key.id() != run_id and is_moving(clients, going_on):
        raise RunGoesOnError(going_on.key.id())
    task_run = runs.new_run(
        clients, measure_numbers, MeasureArgs(run_id), run_id=f"numbers-{run_id}", chains=1
    )

    def body() -> None:
        if numbers_run_key(run_id).get() is None:
            run = NumbersRun(
                key=numbers_run_key(run_id),
                started=naive_utc(clients.clock.now()),
                machine=_machine(stack),
            )
            ndb.put_multi([run, task_run])

    transact(body)
    runs.launch(clients, measure_numbers, task_run.key.id())
    _delete_old()


def _machine(stack: str) -> dict[str, str]:
    return {
        "stack": stack,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count() or "unknown"),
    }


def _delete_old() -> None:
    ndb.delete_multi(newest_runs().fetch(2 * MAX_RUNS, keys_only=True)[MAX_RUNS:])


def newest() -> NumbersRun | None:
    """Return the last run; None: there was none."""
    found: NumbersRun | None = newest_runs().get()
    return found


def before(run: NumbersRun) -> NumbersRun | None:
    """Return the run before another; None: it was the first that is kept."""
    found: NumbersRun | None = newest_runs().filter(NumbersRun.started < run.started).get()
    return found


def is_complete(run: NumbersRun) -> bool:
    """Return whether every probe has been taken."""
    echoes = run.results.get(echo.PROBE, {}).get("samples_ms", [])
    taken = {probe.name for probe in PROBES} - {echo.PROBE} <= run.results.keys()
    return taken and len(echoes) == echo.ECHOES - 1


def is_moving(clients: Clients, run: NumbersRun) -> bool:
    """Return whether a run goes on, and not for too long."""
    age = naive_utc(clients.clock.now()) - run.started
    return not is_complete(run) and age < datetime.timedelta(seconds=GIVEN_UP_AFTER_S)
