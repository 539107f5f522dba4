"""Runs: all probes, one after the other, in background tasks.

A run is a run of a job whose items are the probes. They form one page, since parallel pages would
measure each other. Then a chain of tasks measures the latency of tasks. A row has the results; its
id is the run's address.

Lost on failure: nothing. An interrupted probe is repeated as a whole.

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
# The topic that pages watch; the task of the probes publishes it after each one.
TOPIC = "numbers"
# A run of this age counts as abandoned, and blocks no other.
GIVEN_UP_AFTER_S = 180.0


@dataclass(frozen=True)
class MeasureArgs:
    """The run to measure for."""

    run_id: str


class RunGoesOnError(Exception):
    """Another run, `run_id`, is measuring; two would measure each other."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@job(
    "measure-numbers",
    queue="imports",
    source=NumberSource(len(PROBES)),
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
    """Start a run, once for its id.

    Args:
        stack: The name of its platform, for its page.

    Raises:
        RunGoesOnError: another one is measuring.
    """
    newest_run = newest()
    if newest_run is not None and newest_run.key.id() != run_id and is_moving(clients, newest_run):
        raise RunGoesOnError(newest_run.key.id())
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
    run: NumbersRun | None = newest_runs().get()
    return run


def before(run: NumbersRun) -> NumbersRun | None:
    """Return the previous run; None: there is none in store."""
    previous: NumbersRun | None = newest_runs().filter(NumbersRun.started < run.started).get()
    return previous


def is_complete(run: NumbersRun) -> bool:
    """Return whether every probe has its samples."""
    echoes = run.results.get(echo.PROBE, {}).get("samples_ms", [])
    has_probes = {probe.name for probe in PROBES} - {echo.PROBE} <= run.results.keys()
    return has_probes and len(echoes) == echo.ECHOES - 1


def is_moving(clients: Clients, run: NumbersRun) -> bool:
    """Return whether a run is measuring, and not abandoned."""
    age = naive_utc(clients.clock.now()) - run.started
    return not is_complete(run) and age < datetime.timedelta(seconds=GIVEN_UP_AFTER_S)
