"""Pipelines as an operator sees them: computations with watermarks and backlogs, dead letters."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

from rollforward.runtime.clients import Clients
from rollforward.streams.driver import Engine, run_steps
from rollforward.streams.graph.plan import ActivePipeline, idle_of
from rollforward.streams.inspection import dead_letters, status
from rollforward.streams.inspection.dead_letters import DeadLetter
from rollforward.streams.inspection.status import Overview
from rollforward.streams.model.codecs import Encoded
from rollforward.streams.model.errors import BadRecordError, UnknownStreamError
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.model.sources import PushSource, Source
from rollforward.streams.pipeline import Pipeline
from rollforward.streams.publications.publication import Publication
from rollforward.streams.publications.registration import unread
from rollforward.streams.watermarks.backpressure import source_name
from rollforward.tasks.errors import Retry
from rollforward.tasks.runs import (
    Letter,
    LetterPage,
    LetterQuery,
    LetterRefusedError,
    LetterVerb,
    RunDetails,
    RunIssue,
    RunRefusedError,
    RunVerb,
    UnknownLetterError,
    named_run,
)

PATTERN = "streams"
MAX_SHOWN = 20
# Dead letters that a page of a time reads: they are in the order of their ids.
MAX_SEARCHED = 50
# Of dead letters that one command replays; give it again for more. It looks at so many pages.
MAX_REPLAYED, MAX_REPLAY_PAGES = 100, 5
# Datastore takes no longer names, and the pipeline's is in front.
MAX_LETTER_BYTES = 1_200


def pipeline_details(clients: Clients, pipeline: Pipeline) -> RunDetails:
    """Return the computations of a pipeline, by its head and its intervals, and dead letters."""
    engine = Engine(clients, pipeline)
    overview = engine.run(status.overview(engine.environment))
    letters = pipeline.dead_letters(clients, limit=MAX_SHOWN)
    issues = [RunIssue(f"{letter.id} {letter.key}", "failed", letter.error) for letter in letters]
    numbers: dict[str, float | str] = {"computations": len(overview.intervals)}
    if overview.latest:
        numbers["latest_record_at"] = overview.latest / 1000
    if missing := engine.environment.at(overview.head).missing:
        numbers["missing_code"] = ", ".join(f"{code.name} {code.version}" for code in missing)
    numbers |= _stop_facts(overview)
    numbers |= _source_facts(overview)
    numbers |= _silence_facts(engine, overview)
    numbers |= _subscriber_facts(engine, overview)
    verbs: tuple[RunVerb, ...] = ("retry",) if letters else ()
    return RunDetails(
        named_run(PATTERN, pipeline.name, verbs),
        issues=issues,
        numbers=numbers,
        rows=[_row(overview, name, engine.environment.now_ms()) for name in overview.intervals],
        has_letters=True,
    )


def letters_of(clients: Clients, pipeline: Pipeline, query: LetterQuery) -> LetterPage:
    """Return a page of the dead letters of a pipeline, by id; those of a time among the next 50."""
    read = max(query.limit, MAX_SEARCHED) if query.died else query.limit
    rows = run_steps(clients, pipeline, dead_letters.dead_letters, read + 1, query.cursor)
    letters = [letter for letter in map(_letter, rows[:read]) if query.died.has(letter.died)]
    if len(letters) > query.limit:
        letters = letters[: query.limit]
        return LetterPage(letters, letters[-1].id)
    return LetterPage(letters, rows[read - 1].id if len(rows) > read else "")


def letter_of(clients: Clients, pipeline: Pipeline, letter_id: str) -> Letter:
    """Return a dead letter of a pipeline.

    Raises:
        UnknownLetterError: there is none.
    """
    row = None
    if 0 < len(letter_id.encode()) <= MAX_LETTER_BYTES:
        row = run_steps(clients, pipeline, dead_letters.dead_letter, letter_id)
    if row is None:
        raise UnknownLetterError(letter_id)
    return _letter(row)


def change_letter(clients: Clients, pipeline: Pipeline, letter_id: str, verb: LetterVerb) -> None:
    """Replay or discard a dead letter of a pipeline.

    Raises:
        UnknownLetterError: there is none, or no more.
        LetterRefusedError: no computation reads it any more, or its codec cannot decode it.
    """
    act = pipeline.replay if verb == "replay" else pipeline.discard
    try:
        is_changed = len(letter_id.encode()) <= MAX_LETTER_BYTES and act(clients, letter_id)
    except (UnknownStreamError, BadRecordError) as error:
        raise LetterRefusedError(str(error)) from None
    if not is_changed:
        raise UnknownLetterError(letter_id)


def _letter(row: DeadLetter) -> Letter:
    is_timer = bool(row.tag)
    numbers: dict[str, float | str] = {"computation": row.computation, "key": row.key}
    if row.stream:
        numbers["stream"] = row.stream
    if is_timer:
        numbers["timer"] = row.tag
    if row.timestamp_ms:
        numbers["timer_at" if is_timer else "record_at"] = row.timestamp_ms / 1000
    return Letter(
        id=row.id,
        name=f"{row.computation} {row.key or row.stream}",
        error=row.error,
        body="" if is_timer else _body(row.value),
        died=datetime.datetime.fromtimestamp(row.since_ms / 1000, datetime.UTC),
        numbers=numbers,
    )


def _body(value: Any) -> str:
    """Return a value as JSON, or the name of its codec and its first bytes."""
    return str(value) if isinstance(value, Encoded) else json.dumps(value, ensure_ascii=False)


def replay_dead_letters(clients: Clients, pipeline: Pipeline, verb: RunVerb) -> str:
    """Replay up to 100 dead letters as late records; return the pipeline's name.

    Those that cannot be replayed now stay, and hold up no others.

    Raises:
        RunRefusedError: there are none that can be replayed, or the verb is another one.
        Retry: only other code can decode those that are left, or races were lost.
    """
    if verb != "retry":
        raise RunRefusedError("a pipeline takes retry alone")
    replayed, later, refusals = 0, list[Retry](), list[Exception]()
    for letter in _all_letters(clients, pipeline):
        try:
            replayed += pipeline.replay(clients, letter.id)
        except (BadRecordError, UnknownStreamError) as error:
            refusals.append(error)
        except Retry as error:
            later.append(error)
        if replayed == MAX_REPLAYED:
            break
    if not replayed and later:
        raise later[0]
    if not replayed:
        why = f": {refusals[0]}" if refusals else ""
        raise RunRefusedError(f"it has no dead letters to retry{why}")
    return pipeline.name


def _all_letters(clients: Clients, pipeline: Pipeline) -> Iterator[DeadLetter]:
    """Yield dead letters by id, of a bounded number of pages."""
    start_after = ""
    for _ in range(MAX_REPLAY_PAGES):
        letters = run_steps(clients, pipeline, dead_letters.dead_letters, MAX_REPLAYED, start_after)
        yield from letters
        if len(letters) < MAX_REPLAYED:
            return
        start_after = letters[-1].id


def _stop_facts(overview: Overview) -> dict[str, float | str]:
    """Return why nothing of a pipeline is processed, and since when."""
    stopped = overview.head.stopped
    if not stopped:
        return {}
    facts: dict[str, float | str] = {"stopped": "until it is resumed"}
    if "import" in stopped:
        facts["stopped"] = "until the import is finished"
    if "at_ms" in stopped:
        facts["stopped_at"] = stopped["at_ms"] / 1000
    return facts


def _source_facts(overview: Overview) -> dict[str, float | str]:
    """Return what limits the watermark: the slowest source, idle ones, and paused ones."""
    facts: dict[str, float | str] = {}
    if (slowest := overview.slowest) is not None:
        row = overview.sources[slowest]
        facts |= {"slowest_source": _name_of(slowest), "its_watermark_at": row.watermark / 1000}
        facts["its_last_write_at"] = row.seen_ms / 1000
    if idle := [_name_of(place) for place, row in overview.sources.items() if row.is_idle]:
        facts["idle_sources"] = ", ".join(idle[:MAX_SHOWN])
    paused = [f"{name.rstrip(':')}: {why}" for name, why in overview.head.paused.items()]
    if paused:
        facts["paused_sources"] = "; ".join(paused[:MAX_SHOWN])
    return facts


def _silence_facts(engine: Engine, overview: Overview) -> dict[str, float | str]:
    """Return what the declaration of each source says about silence, and who is silent."""
    plan, now_ms = engine.environment.at(overview.head), engine.environment.now_ms()
    written = dict.fromkeys(stream for stream, _ in overview.sources)
    facts: dict[str, float | str] = {
        f"silence_of_{stream}": silence_rule(plan.sources[stream]) for stream in written
    }
    silent = [
        _name_of(place)
        for place, row in overview.sources.items()
        if not row.is_idle and _is_silent(plan, overview, place, now_ms)
    ]
    if silent:
        facts["silent_sources"] = ", ".join(silent[:MAX_SHOWN])
    return facts


def _is_silent(
    plan: ActivePipeline, overview: Overview, place: tuple[str, str], now_ms: int
) -> bool:
    """Return whether a process has pushed nothing for the source's `idle`, although it could."""
    row, name = overview.sources[place], source_name(*place)
    active_ms = max(row.seen_ms, overview.head.paused_at_ms.get(name, 0))
    is_old = active_ms < now_ms - idle_of(plan, overview.head, place[0])
    is_awaited = row.watermark < FOREVER and name not in overview.head.paused
    return isinstance(plan.sources[place[0]], PushSource) and is_old and is_awaited


def silence_rule(source: Source) -> str:
    """Return what happens to the watermark of a source that falls silent.

    >>> silence_rule(PushSource("log"))
    'the watermark stops'
    >>> silence_rule(PushSource("log", processes=("a", "b")))
    'a process is left out after 0:01:00; if all are silent, the watermark stops'
    >>> silence_rule(PushSource("log", advance_when_idle=datetime.timedelta(minutes=9)))
    'the watermark follows the clock 0:09:00 behind'
    """
    behind = source.advance_when_idle
    rule = "the watermark stops"
    if behind is not None:
        rule = f"the watermark follows the clock {behind} behind"
    if isinstance(source, PushSource) and len(source.processes) > 1:
        return f"a process is left out after {source.idle}; if all are silent, {rule}"
    return rule


def _subscriber_facts(engine: Engine, overview: Overview) -> dict[str, float | str]:
    """Return how many records of its published streams other pipelines have not read."""
    computations = engine.environment.at(overview.head).computations
    facts: dict[str, float | str] = {}
    for name, intervals in overview.intervals.items():
        if isinstance(computations.get(name), Publication):
            by_subscriber = engine.run(unread(engine.environment, name, intervals))
            listed = [f"{reader}: {count}" for reader, count in by_subscriber.items()]
            facts[f"unread_of_{name}"] = "; ".join(listed[:MAX_SHOWN]) or "no subscriber"
    return facts


def _name_of(place: tuple[str, str]) -> str:
    """Return the name of a process or a partition of a source.

    >>> _name_of(("log", "web-1")), _name_of(("log", ""))
    ('log/web-1', 'log')
    """
    return "/".join(filter(None, place))


def _row(overview: Overview, name: str, now_ms: int) -> dict[str, float | str]:
    head, intervals = overview.head, overview.intervals[name]
    watermark = head.inputs.get(name, 0)
    hold = min((interval.hold for interval in intervals), default=NEVER)
    chunks, records, _ = (*head.waiting.get(name, ()), 0, 0, 0)[:3]
    return {
        "computation": name,
        "watermark_at": "the end" if watermark >= FOREVER else watermark / 1000,
        "held_at": hold / 1000 if hold < NEVER else "",
        "waiting_chunks": chunks,
        "waiting_records": records,
        "timers": sum(interval.timers for interval in intervals),
        "records": sum(interval.records for interval in intervals) + overview.inlined[name],
        "late": sum(interval.late + interval.late_between_parts for interval in intervals),
        "dead_so_far": sum(interval.dead for interval in intervals),
        "intervals": len(intervals),
        "leased": sum(interval.is_leased(now_ms) for interval in intervals),
    }
