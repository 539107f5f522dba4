"""`rollforward runs`: jobs, batches, flows and builds; cancelled, resumed and retried."""

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
from rollforward.cli.remote.tables import format_time, printable, table

MAX_IDS = 100
STATES = ("running", "failed", "finished", "cancelled")
VERBS = {
    "cancel": "stop a run after its items in progress",
    "resume": "continue a cancelled run",
    "retry": "run the failed items of a run again",
}
_HEAD = ("PATTERN", "ID", "NAME", "STATE", "DONE", "FAILED", "EXPECTED", "STARTED")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the filters, the options that name the app, and the verbs."""
    parser.add_argument("--pattern", default="", help="runs of one pattern, as listed")
    parser.add_argument("--state", default="", choices=STATES, help="runs of one state")
    parser.add_argument("--name", default="", help="runs of one job, batch, flow or pipeline")
    shared.add_page(parser)
    shared.add_remote_options(parser)
    verbs = shared.add_subparsers_of(parser)
    names = {"pattern": "the pattern of the run, as listed", "id": "its id, as listed"}
    shared.add_subcommand(verbs, "show", "show a run with its items and issues", _show, **names)
    for verb, summary in VERBS.items():
        if verb != "retry":
            shared.add_subcommand(verbs, verb, summary, _control, **names)
    retry, pattern = VERBS["retry"], names["pattern"]
    _add_retry(shared.add_subcommand(verbs, "retry", retry, _retry, pattern=pattern))


def _add_retry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ids", metavar="ID", nargs="*", default=[], help=f"its id; of flows up to {MAX_IDS}"
    )
    parser.add_argument(
        "--from",
        dest="from_step",
        metavar="STEP",
        help="of a flow: run this step and all later ones again; their effects stay",
    )
    parser.add_argument(
        "--all", action="store_true", default=False, help="all flows that have failed"
    )
    parser.add_argument("--name", help="with --all: the failed flows of this name")


def _list(options: argparse.Namespace) -> int:
    answer = remote_app.find(options).app.get(
        "/runs",
        pattern=options.pattern,
        state=options.state,
        name=options.name,
        before=options.after,
        limit=options.limit,
    )
    rows = remote_app.rows_of(answer, "runs")
    return remote_app.show(
        options, "runs", rows, _HEAD, _values, following=answer.get("next_before")
    )


def _values(row: Mapping[str, Any]) -> Iterable[object]:
    counts = row.get("counts")
    counts = counts if isinstance(counts, dict) else {}
    return [
        *(row.get(name) for name in ("pattern", "id", "name", "state")),
        counts.get("done"),
        counts.get("failed"),
        f"{row.get('expected')}+" if row.get("is_partial") else row.get("expected"),
        format_time(row.get("started")),
    ]


def _path(options: argparse.Namespace) -> str:
    return f"/runs/{quote(options.pattern, safe='')}/{quote(options.id, safe='/')}"


def _show(options: argparse.Namespace) -> int:
    answer = remote_app.find(options).app.get(_path(options))
    if options.json:
        print(json.dumps(answer))
        return 0
    run_row = answer.get("run")
    row: Mapping[str, Any] = run_row if isinstance(run_row, dict) else {}
    print(table(_HEAD, [list(_values(row))]))
    counts = row.get("counts")
    if note := row.get("note"):
        print("\n" + printable(f"{note} {format_time(row.get('waits_until'))}".strip()))
    if isinstance(counts, dict) and counts:
        print("\n" + printable(", ".join(f"{name} {count}" for name, count in counts.items())))
    if reason := row.get("reason"):
        print("\n" + printable(str(reason)))
    if steps := remote_app.rows_of(answer, "rows"):
        columns = list(dict.fromkeys(column for step in steps for column in step))
        head = [column.removesuffix("_at").replace("_", " ").upper() for column in columns]
        print("\n" + table(head, [[_fact(column, step) for column in columns] for step in steps]))
    if issues := remote_app.rows_of(answer, "issues"):
        cells = [
            [issue.get("name") or issue.get("item"), issue.get("outcome"), issue.get("reason")]
            for issue in issues
        ]
        print("\n" + table(("ITEM", "OUTCOME", "REASON"), cells))
    return 0


def _fact(column: str, row: Mapping[str, Any]) -> object:
    """Return a cell of a run's table: a time, a link to another run, or what it is."""
    cell = row.get(column)
    if isinstance(cell, dict):
        return f"{cell.get('pattern')} {cell.get('id')}"
    is_time = column.endswith("_at") and isinstance(cell, int | float)
    return format_time(cell) if is_time else cell


def _retry(options: argparse.Namespace) -> int:
    ids, name, step = options.ids, options.name or "", getattr(options, "from_step", None)
    if options.all == bool(ids) or (name and ids) or (step and len(ids) != 1):
        raise WrongUsageError(
            "Name what to retry: ids, or --all, with a --name or not; --from takes one id."
        )
    if len(ids) > MAX_IDS:
        raise WrongUsageError(f"Name at most {MAX_IDS} ids, or use --all.")
    if len(ids) == 1:
        options.id = ids[0]
        return _control(options)
    body: dict[str, Any] = {"ids": ids} if ids else {"all": True, "name": name}
    path = f"/runs/{quote(options.pattern, safe='')}:retry"
    return remote_app.confirm_run(options, remote_app.find(options).app.post(path, body))


def _control(options: argparse.Namespace) -> int:
    step = getattr(options, "from_step", None)
    path, body = f"{_path(options)}:{options.verb}", {"from_step": step} if step else {}
    answer = remote_app.find(options).app.post(path, body)
    words = {"cancel": "Cancelled", "resume": "Resumed", "retry": "Retried"}[options.verb]
    target = f"{options.pattern} {options.id}" + (f" from {step}" if step else "")
    sentence = f"{words} {target}; look at run {answer.get('id')}."
    return remote_app.confirm(options, answer, sentence)


COMMAND = Command(
    "runs",
    "list runs of jobs, batches, flows and views; cancel, resume, retry",
    "List runs, the newest first: jobs, batches, flows and builds of views with the number of "
    "their items. A pipeline does not end and is not listed; `show streams NAME` shows it. "
    "A verb shows, cancels, resumes or retries one. A run that has failed waits for a person; "
    "failed flows are retried one, some, or all at once.",
    add_options,
    shared.subcommand_or(_list),
    remote_app.EPILOG.format(name="runs")
    + " --json prints {runs: [{pattern, id, name, state, args, "
    "started, ended, counts, expected, verbs, ...}], next}; a verb prints {id} of the run to look "
    "at, or {run: {pattern, id}} of the run that retries many.",
)
