"""`rollforward dead`: tasks that were given up; shown, replayed and deleted, one or many."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from rollforward.cli.command import Command
from rollforward.cli.errors import WrongUsageError
from rollforward.cli.remote import options as shared
from rollforward.cli.remote import remote_app
from rollforward.cli.remote.tables import format_time, printable

MAX_IDS = 100
FILTERS = {
    "pattern": "dead tasks of one pattern",
    "queue": "dead tasks of one queue",
    "error": "dead tasks of one class of errors, as listed",
    "since": "not older than this time, like 2030-05-01T12:00Z",
    "until": "not newer than this time",
}
VERBS = {
    "replay": "run dead tasks again",
    "delete": "delete dead tasks for good",
}
_HEAD = ("ID", "PATH", "QUEUE", "ERROR", "TIMES", "LAST", "REASON")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the filters, the options that name the app, and the verbs."""
    _add_filters(parser)
    shared.add_page(parser)
    shared.add_remote_options(parser)
    verbs = shared.add_subparsers_of(parser)
    shown = "show a dead task with its body and reason"
    shared.add_subcommand(verbs, "show", shown, _show, id="its id, as listed")
    for verb, summary in VERBS.items():
        changed = shared.add_subcommand(verbs, verb, summary, _change)
        changed.add_argument(
            "ids", metavar="ID", nargs="*", default=[], help=f"up to {MAX_IDS} ids, as listed"
        )
        changed.add_argument(
            "--all", action="store_true", default=False, help="all that the filters take"
        )
        _add_filters(changed)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    for name, about in FILTERS.items():
        parser.add_argument(f"--{name}", help=about)


def _list(options: argparse.Namespace) -> int:
    answer = remote_app.find(options).app.get(
        "/dead-tasks", cursor=options.after, limit=options.limit, **_filter(options)
    )
    rows = remote_app.rows_of(answer, "dead_tasks")
    following = answer.get("next_cursor")
    return remote_app.show(options, "dead_tasks", rows, _HEAD, _values, following=following)


def _filter(options: argparse.Namespace) -> dict[str, str]:
    return {name: value for name in FILTERS if (value := getattr(options, name, None))}


def _values(row: Mapping[str, Any]) -> Iterable[object]:
    reason = str(row.get("reason") or "").strip().splitlines()
    return [
        *(row.get(name) for name in ("id", "path", "queue", "error", "count")),
        format_time(row.get("updated")),
        reason[0][:200] if reason else "",
    ]


def _path(dead_id: str) -> str:
    return f"/dead-tasks/{quote(dead_id, safe='')}"


def _show(options: argparse.Namespace) -> int:
    answer = remote_app.find(options).app.get(_path(options.id))
    if options.json:
        print(json.dumps(answer))
        return 0
    for name, value in answer.items():
        lines = str(value).splitlines() if value is not None else []
        print(f"{name}: {printable(lines[0]) if lines else ''}")
        for line in lines[1:]:
            print(f"    {printable(line)}")
    return 0


def _change(options: argparse.Namespace) -> int:
    chosen, ids, verb = _filter(options), options.ids, options.verb
    if options.all == bool(ids) or (ids and chosen):
        raise WrongUsageError(
            f"Name what to {verb}: ids, or --all with filters. `rollforward dead` lists them."
        )
    if len(ids) > MAX_IDS:
        raise WrongUsageError(f"Name at most {MAX_IDS} ids, or use --all with filters.")
    app = remote_app.find(options).app
    if len(ids) == 1:
        answer = app.post(f"{_path(ids[0])}:{verb}")
        return remote_app.confirm(options, answer, f"{ids[0]}: {answer.get('result')}.")
    answer = app.post(f"/dead-tasks:{verb}", {"ids": ids} if ids else {"filter": chosen})
    return remote_app.confirm_run(options, answer)


COMMAND = Command(
    "dead",
    "list dead tasks; replay or delete them",
    "List dead tasks, which failed too often or can never work, the newest first. A verb shows "
    "one, or replays or deletes one or many; many are a run of their own.",
    add_options,
    shared.subcommand_or(_list),
    remote_app.EPILOG.format(name="dead")
    + " --json prints {dead_tasks: [{id, path, pattern, queue, "
    "error, reason, count, created, updated, ...}], next}; a verb prints {id, result}, or {run: "
    "{pattern, id}} for many.",
)
