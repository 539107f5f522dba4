"""Loads, rushes and playbacks of the demos, as the console's list of runs shows them.

Each is derived from the rows that its demo keeps. A list reads a row for each kind, and one for
each sum; the rows of writers are read for the page of one load. There are few of each kind, so a
source returns all of them, and the list takes those that it asked for.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from google.cloud import ndb

from models.counters import ClickLoads
from models.counters import loads_key as click_loads_key
from models.sums import SumLoads
from models.sums import loads_key as sum_loads_key
from models.tenants import TenantRush, newest_rushes, rush_key
from models.weblog import AccessLogs, access_logs
from pipelines.counters import load as clicks
from pipelines.loads import TimedLoad
from pipelines.sums import load as additions
from pipelines.sums.sums import names as sum_names
from pipelines.tenants import rushes
from pipelines.weblog.pipeline import WEBLOG
from pipelines.weblog.source import position_of
from pipelines.zeitgeist.playbacks import Playback, current
from pipelines.zeitgeist.series import BUCKET_MS
from rollforward.operations.run_sources import (
    Fact,
    Run,
    RunDetails,
    RunLink,
    RunSource,
    RunState,
)
from rollforward.runtime import Clients

PAST = "replaced by a later load"


def _at(ms: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


def _timed(clients: Clients, load: TimedLoad) -> tuple[RunState, datetime.datetime | None]:
    """Return the state of a load by its plan: it makes its items for its seconds."""
    if load.age_s(clients) < load.seconds:
        return "running", None
    return "finished", _at(load.started_ms + load.seconds * 1000)


def _counts(made: int, asked: int, state: RunState) -> dict[str, int]:
    """Return the items of a load: those left when its time was over were not attempted."""
    rest = max(0, asked - made)
    return {"done": made, "waiting" if state == "running" else "skipped": rest}


# Clicks


def _click_run(clients: Clients, load: clicks.ClickLoad, **fields: Any) -> Run:
    state, ended = _timed(clients, load)
    args, started = json.dumps(asdict(load)), _at(load.started_ms)
    return CLICK_LOADS.run(load.id, state, started, ended, args=args, **fields)


def _click_loads(loads: ClickLoads | None) -> list[clicks.ClickLoad]:
    stored = [loads.load, loads.past] if loads is not None else []
    return [clicks.ClickLoad(**fields) for fields in stored if fields]


def _newest_click_loads(
    clients: Clients, started_before: datetime.datetime | None, limit: int
) -> Sequence[Run]:
    loads = _click_loads(click_loads_key().get())
    return [_click_run(clients, load) for load in loads]


def _click_load(clients: Clients, load_id: str) -> RunDetails | None:
    for load in _click_loads(click_loads_key().get()):
        if load.id == load_id:
            writers = clicks.writers_of(load)
            made = sum(row.accepted for row in writers)
            state, _ = _timed(clients, load)
            counts = _counts(made, load.clicks * len(load.ways), state)
            rows = [
                _writer(f"{clicks.way_of(row)} {row.key.id().rpartition('|')[2]}", row)
                for row in writers
            ]
            return RunDetails(_click_run(clients, load, counts=counts), rows=rows)
    return None


def _writer(name: str, row: Any) -> dict[str, Fact]:
    return {
        "writer": name,
        "accepted": row.accepted or 0,
        "repeats": row.repeats or 0,
        "writes": row.writes or 0,
    }


# Additions


def _sum_runs(clients: Clients, name: str, loads: SumLoads | None) -> list[Run]:
    """Return the loads of a sum: the last one, and the earlier ones whose rows exist."""
    load = additions.load_of(loads)
    if loads is None or load is None:
        return []
    past = [
        SUM_LOADS.run(f"{name}|{load_id}|{writers}", "finished", _at(started_ms), note=PAST)
        for load_id, writers, started_ms in loads.past or []
        if load_id != load.id
    ]
    return [_sum_run(clients, load), *past]


def _sum_run(clients: Clients, load: additions.Load, **fields: Any) -> Run:
    state, ended = _timed(clients, load)
    args, started = json.dumps(asdict(load)), _at(load.started_ms)
    own_id = f"{load.sum}|{load.id}|{load.writers}"
    return SUM_LOADS.run(own_id, state, started, ended, args=args, **fields)


def _newest_sum_loads(
    clients: Clients, started_before: datetime.datetime | None, limit: int
) -> Sequence[Run]:
    names = sum_names()
    rows = ndb.get_multi([sum_loads_key(name) for name in names])
    pairs = zip(names, rows, strict=True)
    return [run for name, row in pairs for run in _sum_runs(clients, name, row)]


def _sum_load(clients: Clients, own_id: str) -> RunDetails | None:
    name = own_id.partition("|")[0]
    loads = sum_loads_key(name).get() if name else None
    runs = {run.id: run for run in _sum_runs(clients, name, loads)}
    run, load = runs.get(f"{SUM_LOADS.name}:{own_id}"), additions.load_of(loads)
    if run is None or load is None:
        return None
    if not own_id.startswith(f"{name}|{load.id}|"):
        return RunDetails(run)
    status = additions.status(clients, name)
    counts = _counts(status.accepted.items, load.items, run.state)
    rows = [_writer(row.key.id().rpartition("|")[2], row) for row in status.writers]
    return RunDetails(_sum_run(clients, load, counts=counts), rows=rows)


# Rushes


def _rush_run(rush: TenantRush) -> Run:
    args = {name: getattr(rush, name) for name in rushes.RushForm.__dataclass_fields__}
    started = rush.created.replace(tzinfo=datetime.UTC)
    sent_at = rush.behind_at.replace(tzinfo=datetime.UTC) if rush.behind_at else None
    note = "all of its tasks were sent" if sent_at else f"{rush.sent} of its flood were sent"
    state: RunState = "finished" if sent_at else "running"
    return RUSHES.run(rush.key.id(), state, started, sent_at, note=note, args=json.dumps(args))


def _newest_rushes(
    clients: Clients, started_before: datetime.datetime | None, limit: int
) -> Sequence[Run]:
    rows = newest_rushes().fetch(rushes.MAX_RUSHES)
    return [_rush_run(row) for row in rows]


def _rush(clients: Clients, rush_id: str) -> RunDetails | None:
    rush = rush_key(rush_id).get()
    if rush is None:
        return None
    rows: list[dict[str, Fact]] = [
        {"tenant": tenant, "tasks": rushes.asked_of(rush, tenant)}
        for tenant in rushes.tenants_of(rush)
    ]
    if rush.way == rushes.IN_LANES:
        for row in rows:
            row["lane"] = RunLink("lanes", rushes.lane_of(rush, str(row["tenant"])).id)
    return RunDetails(_rush_run(rush), rows=rows)


# Playbacks


def _playback_run(playback: Playback) -> Run:
    """Return a playback with its buckets of all feeds."""
    asked = len(playback.reached) * (playback.last - playback.begin) // BUCKET_MS
    made = sum(at - playback.begin for at in playback.reached.values()) // BUCKET_MS
    state: RunState = "finished" if playback.is_over else "running"
    return PLAYBACKS.run(
        playback.id,
        state,
        _at(playback.started_ms),
        _at(playback.ended_ms) if playback.ended_ms else None,
        counts=_counts(made, asked, state),
        note=f"{playback.title}, {playback.speed:,} times as fast",
    )


def _newest_playbacks(
    clients: Clients, started_before: datetime.datetime | None, limit: int
) -> Sequence[Run]:
    playback = current()
    return [_playback_run(playback)] if playback else []


def _playback(clients: Clients, playback_id: str) -> RunDetails | None:
    playback = current()
    if playback is None or playback.id != playback_id:
        return None
    rows: list[dict[str, Fact]] = [
        {
            "feed": feed,
            "buckets": (at - playback.begin) // BUCKET_MS,
            "held_back": "yes" if feed in playback.held else "no",
        }
        for feed, at in playback.reached.items()
    ]
    numbers: dict[str, Fact] = {"series": len(playback.parts), "changes": len(playback.changes)}
    return RunDetails(_playback_run(playback), numbers=numbers, rows=rows)


# Logs


def _log_run(clients: Clients, row: AccessLogs) -> tuple[Run, int] | None:
    """Return the last run of the web log, and the number of the log that is read now."""
    if not row.run:
        return None
    position = position_of(WEBLOG.position(clients, "requests"))
    first = int(row.run["log"])
    state: RunState = "running" if position.log < row.count else "finished"
    run = LOGS.run(
        str(first),
        state,
        _at(row.run["started_ms"]),
        counts={"done": max(0, position.log - first), "waiting": max(0, row.count - position.log)},
        note="" if state == "running" else "its logs are read",
    )
    return run, position.log


def _newest_logs(
    clients: Clients, started_before: datetime.datetime | None, limit: int
) -> Sequence[Run]:
    reading = _log_run(clients, access_logs())
    return [reading[0]] if reading else []


def _logs(clients: Clients, own_id: str) -> RunDetails | None:
    row = access_logs()
    last_run = _log_run(clients, row)
    if last_run is None or last_run[0].id != f"{LOGS.name}:{own_id}":
        return None
    run, reading = last_run
    logs = enumerate(row.logs, int(row.first_number))
    rows: list[dict[str, Fact]] = [
        {
            "log": log["name"],
            "state": "done" if number < reading else "waiting",
            "bytes": log["bytes"],
            "lines_per_s": log.get("pace") or "any",
        }
        for number, log in logs
        if number >= int(own_id)
    ]
    return RunDetails(run, rows=rows)


CLICK_LOADS = RunSource("click-load", _newest_click_loads, _click_load)
SUM_LOADS = RunSource("sum-load", _newest_sum_loads, _sum_load)
RUSHES = RunSource("tenant-rush", _newest_rushes, _rush)
PLAYBACKS = RunSource(
    "zeitgeist-playback", _newest_playbacks, _playback, RunLink("streams", "zeitgeist")
)
LOGS = RunSource("web-log-playback", _newest_logs, _logs, RunLink("streams", "weblog"))
SOURCES = (CLICK_LOADS, SUM_LOADS, RUSHES, PLAYBACKS, LOGS)
