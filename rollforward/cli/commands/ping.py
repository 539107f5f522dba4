"""`rollforward ping`: a task through each queue of an app that runs, to see whether it arrives."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rollforward.cli.command import Command
from rollforward.cli.errors import CliError
from rollforward.cli.remote import options as shared
from rollforward.cli.remote import remote_app
from rollforward.cli.remote.tables import format_time, printable, table

if TYPE_CHECKING:
    from rollforward.cli.remote.http import Endpoint

TIMEOUT_S = 30.0
PAUSE_S = 0.5
_HEAD = ("QUEUE", "STATE", "DELIVERED AFTER")
_NO_SWEEP = (
    "No sweep is known. If the app has memcached, and has served for some minutes, the scheduler "
    "does not call /cron/sweep, and work that a crash interrupts waits. Check cron.yaml, or the "
    "job of Cloud Scheduler."
)
_PAUSED = "it is paused. Resume it: {command}."
_LATE = (
    "it has the task, and the app has not taken it in {timeout_s:g} s. If the app does not accept "
    "the caller, its log has the reason behind `refused POST '/tasks/operations/ping'`. Otherwise "
    "Cloud Tasks does not reach the app, or the queue is behind: rollforward tasks --queue {queue} "
    "lists its tasks with their last errors."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the app, and how long to wait."""
    shared.add_remote_options(parser)
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_S,
        metavar="S",
        help=f"seconds to wait for the deliveries, 1 to 600 ({TIMEOUT_S:g})",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 600:
        raise argparse.ArgumentTypeError(f"must be 1 to 600, got {text!r}")
    return seconds


def _ping(options: argparse.Namespace) -> int:
    at = remote_app.find(options)
    app = at.app
    sent = app.post("/pings")
    errors = {
        str(row.get("queue")): str(row["error"])
        for row in remote_app.rows_of(sent, "queues")
        if row.get("error")
    }
    answer = _wait(app, str(sent.get("id")), errors, options.timeout)
    rows = [
        {**row, "error": errors.get(str(row.get("queue")))}
        for row in remote_app.rows_of(answer, "queues")
    ]
    states = _states(app)
    for row in rows:
        row["state"] = states.get(str(row["queue"]))
        if row["error"] is None and row.get("delivered_after_s") is None:
            row["error"] = _reason(row, options.timeout, is_local=at.platform is not None)
    last_sweep = answer.get("last_sweep")
    if options.json:
        print(json.dumps({"queues": rows, "last_sweep": last_sweep}))
    else:
        _print(rows, last_sweep)
    return 1 if any(row["error"] for row in rows) else 0


def _wait(
    app: Endpoint, ping_id: str, errors: Mapping[str, str], timeout_s: float
) -> dict[str, Any]:
    """Return the last answer about a ping: when all queues have delivered it, or it is late."""
    ends_s = time.monotonic() + timeout_s
    is_told = False
    while True:
        answer = app.get(f"/pings/{quote(ping_id, safe='')}")
        waiting = [
            str(row.get("queue"))
            for row in remote_app.rows_of(answer, "queues")
            if row.get("delivered_after_s") is None and row.get("queue") not in errors
        ]
        if not waiting or time.monotonic() >= ends_s:
            return answer
        if not is_told and sys.stderr.isatty():
            print(f"Waiting for {printable(', '.join(waiting))} ...", file=sys.stderr)
            is_told = True
        time.sleep(PAUSE_S)


def _states(app: Endpoint) -> dict[str, object]:
    """Return the states of the queues, as far as the app's account may list them."""
    try:
        queues = remote_app.rows_of(app.get("/queues"), "queues")
    except CliError:
        return {}
    return {str(queue.get("name")): queue.get("state") for queue in queues}


def _reason(row: Mapping[str, Any], timeout_s: float, *, is_local: bool) -> str:
    queue = row["queue"]
    if str(row["state"]).lower() != "paused":
        return _LATE.format(queue=queue, timeout_s=timeout_s)
    in_project = f"gcloud tasks queues resume {queue} --location=REGION"
    return _PAUSED.format(command=f"rollforward queues resume {queue}" if is_local else in_project)


def _print(rows: Sequence[Mapping[str, Any]], last_sweep: object) -> None:
    cells = [(row["queue"], row["state"], _delivered(row)) for row in rows]
    print(table(_HEAD, cells))
    for row in rows:
        if row["error"]:
            print(f"\n{printable(str(row['queue']))}: {printable(str(row['error']))}")
    print(f"\nLast sweep: {format_time(last_sweep)}" if last_sweep else f"\n{_NO_SWEEP}")


def _delivered(row: Mapping[str, Any]) -> str:
    seconds = row.get("delivered_after_s")
    return f"{seconds:.1f} s" if isinstance(seconds, int | float) else "not delivered"


COMMAND = Command(
    "ping",
    "send a task through each queue, and see whether it arrives",
    "Send a task through each queue of an app that runs, and wait for the deliveries: the first "
    "look at a deployment. It finds a queue that is absent or paused, a right that the app's "
    "account lacks, and a token that the app does not accept. Exit code 1: one did not arrive.",
    add_options,
    _ping,
    remote_app.EPILOG.format(name="ping") + " --json prints {queues: [{queue, state, "
    "delivered_after_s, error}], last_sweep}; what is null is not known, or not so.",
)
