"""Pipelines as an operator sees them: computations with watermarks and backlogs, dead letters."""

from __future__ import annotations

from rollforward.runtime.clients import Clients
from rollforward.streams.driver import Engine
from rollforward.streams.inspection import status
from rollforward.streams.inspection.status import Overview
from rollforward.streams.model.records import FOREVER
from rollforward.streams.pipeline import Pipeline
from rollforward.tasks.runs import RunDetails, RunIssue, RunRefusedError, RunVerb, standing_run

PATTERN = "streams"
MAX_SHOWN = 20
# Of dead letters that one command replays; give it again for more.
MAX_REPLAYED = 100


def pipeline_details(clients: Clients, pipeline: Pipeline) -> RunDetails:
    """Return the computations of a pipeline, by its head and its intervals, and dead letters."""
    engine = Engine(clients, pipeline)
    overview = engine.run(status.overview(engine.environment))
    letters = pipeline.dead_letters(clients, limit=MAX_SHOWN)
    issues = [RunIssue(f"{letter.id} {letter.key}", "failed", letter.error) for letter in letters]
    numbers: dict[str, float | str] = {"computations": len(overview.intervals)}
    if overview.latest:
        numbers["latest_record_at"] = overview.latest / 1000
    verbs: tuple[RunVerb, ...] = ("retry",) if letters else ()
    return RunDetails(
        standing_run(PATTERN, pipeline.name, verbs),
        issues=issues,
        numbers=numbers,
        rows=[_row(overview, name, engine.environment.now_ms()) for name in overview.intervals],
    )


def replay_dead_letters(clients: Clients, pipeline: Pipeline, verb: RunVerb) -> str:
    """Replay up to 100 dead letters as late records; return the pipeline's name.

    Raises:
        RunRefusedError: there are none, or the verb is another one.
    """
    letters = pipeline.dead_letters(clients, limit=MAX_REPLAYED)
    if verb != "retry" or not letters:
        raise RunRefusedError("it has no dead letters to retry")
    for letter in letters:
        pipeline.replay(clients, letter.id)
    return pipeline.name


def _row(overview: Overview, name: str, now_ms: int) -> dict[str, float | str]:
    head, intervals = overview.head, overview.intervals[name]
    watermark = head.inputs.get(name, 0)
    chunks, records, _ = (*head.waiting.get(name, ()), 0, 0, 0)[:3]
    return {
        "computation": name,
        "watermark_at": "the end" if watermark >= FOREVER else watermark / 1000,
        "waiting_chunks": chunks,
        "waiting_records": records,
        "timers": sum(interval.timers for interval in intervals),
        "records": sum(interval.records for interval in intervals),
        "late": sum(interval.late + interval.late_between_parts for interval in intervals),
        "dead": sum(interval.dead for interval in intervals),
        "intervals": len(intervals),
        "leased": sum(interval.is_leased(now_ms) for interval in intervals),
    }
