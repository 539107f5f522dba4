"""`rollforward queues`: states and limits; on the local platform also paused, resumed, purged."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from rollforward.cli.command import Command
from rollforward.cli.remote import options as shared
from rollforward.cli.remote import remote_app

VERBS = {
    "pause": "deliver nothing from a queue of the local platform",
    "resume": "deliver again from a queue of the local platform",
    "purge": "drop all tasks of a queue of the local platform",
}
_WORDS = {"pause": "Paused", "resume": "Resumed", "purge": "Purged"}
_WAITING = ("scheduled", "queued", "running", "retrying")
_HEAD = ("QUEUE", "STATE", "WAITING", "RATE/S", "CONCURRENT", "ATTEMPTS")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the app, and the verbs."""
    shared.add_remote_options(parser)
    verbs = shared.add_subparsers_of(parser)
    for verb, summary in VERBS.items():
        shared.add_subcommand(verbs, verb, summary, _change, name="the queue")


def _list(options: argparse.Namespace) -> int:
    at = remote_app.find(options)
    if at.platform is not None:
        rows = [_local_row(row) for row in remote_app.rows_of(at.platform.get("/queues"), "queues")]
    else:
        rows = [_deployed_row(row) for row in remote_app.rows_of(at.app.get("/queues"), "queues")]
    return remote_app.show(options, "queues", rows, _HEAD, _values)


def _local_row(row: Mapping[str, Any]) -> dict[str, Any]:
    counts = row.get("counts")
    counts = counts if isinstance(counts, dict) else {}
    return {
        "name": row.get("id"),
        "state": row.get("state"),
        "waiting": sum(counts.get(state, 0) for state in _WAITING),
        "rate_per_s": row.get("rate_per_s"),
        "max_concurrent": row.get("max_concurrent"),
        "max_attempts": row.get("max_attempts"),
    }


def _deployed_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": row.get("name"),
        "state": row.get("state"),
        "waiting": None,
        "rate_per_s": row.get("max_per_s"),
        "max_concurrent": row.get("max_concurrent"),
        "max_attempts": row.get("max_attempts"),
    }


def _values(row: Mapping[str, Any]) -> Iterable[object]:
    attempts = row["max_attempts"]
    cells = [row[name] for name in ("name", "state", "waiting", "rate_per_s", "max_concurrent")]
    return [*cells, "unlimited" if attempts == -1 else attempts]


def _change(options: argparse.Namespace) -> int:
    at = remote_app.find(options)
    verb: str = options.verb
    platform = at.local(
        f"rollforward queues {verb}",
        f"In a project: gcloud tasks queues {verb} {options.name} --location=REGION",
    )
    answer = platform.post(f"/queues/{quote(options.name, safe='')}/{verb}")
    row = _local_row(answer)
    return remote_app.confirm(options, row, f"{_WORDS[verb]} {row['name']}.")


COMMAND = Command(
    "queues",
    "list queues; on the local platform pause, resume, purge",
    "List queues with their states and limits. The verbs work on the local platform; a deployed "
    "app's queues are changed by gcloud.",
    add_options,
    shared.subcommand_or(_list),
    remote_app.EPILOG.format(name="queues") + " --json prints {queues: [{name, state, waiting, "
    "rate_per_s, max_concurrent, max_attempts}], next}; waiting is null for a deployed app, "
    "max_attempts -1 is unlimited. A verb prints the queue.",
)
