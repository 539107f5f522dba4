"""`rollforward runs`: jobs, batches and streams at work; cancelled, resumed and retried."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from rollforward.cli.command import Command
from rollforward.cli.commands.tasks import add_page_options
from rollforward.cli.remote import place
from rollforward.cli.remote.tables import moment, printable, table

STATES = ("running", "finished", "cancelled")
VERBS = {
    "cancel": "stop a run after its items in progress",
    "resume": "continue a cancelled run",
    "retry": "run the failed items of a run again",
}
_HEAD = ("PATTERN", "ID", "NAME", "STATE", "DONE", "FAILED", "EXPECTED", "STARTED")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the filters, the options of a place, and the verbs."""
    parser.add_argument("--state", default="", choices=STATES, help="runs of one state")
    parser.add_argument("--name", default="", help="runs of one job, batch or pipeline")
    add_page_options(parser)
    place.add_options(parser)
    verbs = parser.add_subparsers(metavar="VERB", dest="verb")
    _add_run(place.add_verb(verbs, "show", "show a run with its items and issues", _show))
    for verb, summary in VERBS.items():
        _add_run(place.add_verb(verbs, verb, summary, _control))


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", metavar="PATTERN", help="the pattern of the run, as listed")
    parser.add_argument("id", metavar="ID", help="its id, as listed")


def run(options: argparse.Namespace) -> int:
    """Run the verb, or list runs if there is none."""
    if options.verb:
        code: int = options.run_verb(options)
        return code
    answer = place.place_of(options).app.get(
        "/runs",
        state=options.state,
        name=options.name,
        before=options.after,
        limit=options.limit,
    )
    rows = place.rows_of(answer, "runs")
    return place.show(options, "runs", rows, _HEAD, _cells, following=answer.get("next_before"))


def _cells(row: Mapping[str, Any]) -> Iterable[object]:
    counts = row.get("counts")
    counts = counts if isinstance(counts, dict) else {}
    return [
        *(row.get(name) for name in ("pattern", "id", "name", "state")),
        counts.get("done"),
        counts.get("failed"),
        row.get("expected"),
        moment(row.get("started")),
    ]


def _path(options: argparse.Namespace) -> str:
    return f"/runs/{quote(options.pattern, safe='')}/{quote(options.id, safe='/')}"


def _show(options: argparse.Namespace) -> int:
    answer = place.place_of(options).app.get(_path(options))
    if options.json:
        print(json.dumps(answer))
        return 0
    run_row = answer.get("run")
    row: Mapping[str, Any] = run_row if isinstance(run_row, dict) else {}
    print(table(_HEAD, [list(_cells(row))]))
    counts = row.get("counts")
    if isinstance(counts, dict):
        print("\n" + printable(", ".join(f"{name} {count}" for name, count in counts.items())))
    if issues := place.rows_of(answer, "issues"):
        cells = [[issue.get(name) for name in ("item", "outcome", "reason")] for issue in issues]
        print("\n" + table(("ITEM", "OUTCOME", "REASON"), cells))
    return 0


def _control(options: argparse.Namespace) -> int:
    answer = place.place_of(options).app.post(f"{_path(options)}:{options.verb}")
    words = {"cancel": "Cancelled", "resume": "Resumed", "retry": "Retried"}[options.verb]
    sentence = f"{words} {options.pattern} {options.id}; look at run {answer.get('id')}."
    return place.confirm(options, answer, sentence)


COMMAND = Command(
    "runs",
    "list runs of jobs, batches and streams; cancel, resume, retry",
    "List runs, the newest first: jobs, batches and streams with the number of their items. A verb "
    "shows, cancels, resumes or retries one.",
    add_options,
    run,
    place.EPILOG.format(name="runs") + " --json prints {runs: [{pattern, id, name, state, args, "
    "started, ended, counts, expected, verbs, ...}], next}; a verb prints {id} of the run to look "
    "at.",
)
