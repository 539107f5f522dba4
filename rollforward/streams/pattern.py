"""Pattern of streams for the registry: tasks, sweep and gauges of pipelines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rollforward.runtime.clients import Clients
from rollforward.runtime.run_all import run_all
from rollforward.streams import listing
from rollforward.streams.driver import tasks_of
from rollforward.streams.gauges import gauges_of
from rollforward.streams.pipeline import Pipeline
from rollforward.streams.pushes import push_task
from rollforward.streams.sweep import sweep_pipeline
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Gauge, Pattern
from rollforward.tasks.runs import (
    Letter,
    LetterPage,
    LetterQuery,
    LetterVerb,
    RunDetails,
    RunVerb,
    UnknownRunError,
)

log = logging.getLogger(__name__)


class Streams(Pattern[Pipeline]):
    """Pipelines of computations, with their pending records."""

    name = "streams"
    takes = Pipeline
    has_unique_names = True

    def tasks(self, parts: Sequence[Pipeline]) -> Iterable[Task[Any]]:
        return [task for part in parts for task in _tasks(part)]

    def sweep(
        self, clients: Clients, parts: Sequence[Pipeline], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Advance the watermarks of each pipeline, and wake intervals that have work."""
        results = run_all(
            (f"the sweep of {part.name} failed", partial(sweep_pipeline, clients, part))
            for part in parts
        )
        results.raise_first()
        return {"woken": sum(results.returned)}

    def part_names(self, parts: Sequence[Pipeline]) -> Iterable[str]:
        return [part.name for part in parts]

    def run(self, clients: Clients, parts: Sequence[Pipeline], run_id: str) -> RunDetails:
        return listing.pipeline_details(clients, _pipeline(parts, run_id))

    def control_run(
        self, clients: Clients, parts: Sequence[Pipeline], run_id: str, verb: RunVerb
    ) -> str:
        return listing.replay_dead_letters(clients, _pipeline(parts, run_id), verb)

    def letters(
        self, clients: Clients, parts: Sequence[Pipeline], part_id: str, query: LetterQuery
    ) -> LetterPage:
        return listing.letters_of(clients, _pipeline(parts, part_id), query)

    def letter(
        self, clients: Clients, parts: Sequence[Pipeline], part_id: str, letter_id: str
    ) -> Letter:
        return listing.letter_of(clients, _pipeline(parts, part_id), letter_id)

    def change_letter(
        self,
        clients: Clients,
        parts: Sequence[Pipeline],
        part_id: str,
        letter_id: str,
        verb: LetterVerb,
    ) -> None:
        listing.change_letter(clients, _pipeline(parts, part_id), letter_id, verb)

    def gauges(self, clients: Clients, parts: Sequence[Pipeline]) -> Sequence[Gauge]:
        return [gauge for part in parts for gauge in gauges_of(clients, part)]


def _tasks(part: Pipeline) -> Iterable[Task[Any]]:
    return (
        *tasks_of(part).all,
        push_task(part),
        *(task for sink in part.sinks for task in sink.tasks),
    )


def _pipeline(parts: Sequence[Pipeline], name: str) -> Pipeline:
    for pipeline in parts:
        if pipeline.name == name:
            return pipeline
    raise UnknownRunError(name)
