"""`rollforward lanes`: lanes and their keys; one key paused, resumed, drained."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from rollforward.cli.command import Command
from rollforward.cli.remote import options as shared
from rollforward.cli.remote import remote_app
from rollforward.cli.remote.tables import format_time, table

VERBS = {
    "pause": "let no further task of a key begin",
    "resume": "let a key go on that is paused, or blocked by a dead task",
    "drain": "delete the tasks of a key that wait; those at work stay",
}
_WORDS = {"pause": "Paused", "resume": "Resumed"}
_HEAD = ("LANE", "TASKS", "OLDEST", "PAUSED", "BLOCKED", "ORDER", "LIMIT", "RATE", "QUEUE")
_KEY_HEAD = ("KEY", "TASKS", "FIRST", "STATE", "AT WORK")
_TASK_HEAD = ("TASK", "ADDED", "BEGUN", "FAILURES", "REASON")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the app, and the verbs."""
    shared.add_remote_options(parser)
    verbs = shared.add_subparsers_of(parser)
    lane, key = {"lane": "the lane"}, {"key": "the key, as the app's code has it"}
    keys = shared.add_subcommand(
        verbs, "keys", "list the keys of a lane that have tasks", _keys, **lane
    )
    keys.add_argument(
        "--resting", action="store_true", default=False, help="keys that are paused or blocked"
    )
    shared.add_after(keys)
    shared.add_subcommand(verbs, "show", "show a key with its first tasks", _show, **lane, **key)
    for verb, summary in VERBS.items():
        shared.add_subcommand(verbs, verb, summary, _change, **lane, **key)


def _list(options: argparse.Namespace) -> int:
    rows = remote_app.rows_of(remote_app.find(options).app.get("/lanes"), "lanes")
    return remote_app.show(options, "lanes", rows, _HEAD, _values)


def _values(row: Mapping[str, Any]) -> Iterable[object]:
    oldest_s = row.get("oldest_s")
    age = f"{oldest_s:.0f} s" if isinstance(oldest_s, int | float) and oldest_s else None
    names = ("paused", "blocked", "order", "limit", "rate", "queue")
    return [row.get("name"), row.get("waiting"), age, *(row.get(name) for name in names)]


def _keys(options: argparse.Namespace) -> int:
    answer = remote_app.find(options).app.get(
        _path(options),
        state="resting" if options.resting else "",
        after=options.after,
    )
    rows, following = remote_app.rows_of(answer, "keys"), answer.get("next_after")
    return remote_app.show(options, "keys", rows, _KEY_HEAD, _key_values, following=following)


def _key_values(row: Mapping[str, Any]) -> Iterable[object]:
    claims = row.get("claims")
    at_work = len(claims) if isinstance(claims, list) else 0
    state = "blocked" if row.get("blocked_by") else "paused" if row.get("is_paused") else "open"
    return [row.get("key"), row.get("waiting"), format_time(row.get("first")), state, at_work]


def _path(options: argparse.Namespace) -> str:
    return f"/lanes/{quote(options.lane, safe='')}"


def _show(options: argparse.Namespace) -> int:
    answer = remote_app.find(options).app.get(_path(options), key=options.key)
    if options.json:
        print(json.dumps(answer))
        return 0
    print(table(_KEY_HEAD, [list(_key_values(answer))]))
    if dead_id := answer.get("blocked_by"):
        print(f"\nA dead task blocks it: rollforward dead show {dead_id}")
    if tasks := remote_app.rows_of(answer, "tasks"):
        cells = [
            [
                task.get("path"),
                format_time(task.get("added")),
                format_time(task.get("began")) if task.get("began") else None,
                task.get("failures"),
                task.get("reason"),
            ]
            for task in tasks
        ]
        print("\n" + table(_TASK_HEAD, cells))
    return 0


def _change(options: argparse.Namespace) -> int:
    query = urlencode({"key": options.key})
    answer = remote_app.find(options).app.post(f"{_path(options)}:{options.verb}?{query}")
    target = f"{options.key} of {options.lane}"
    sentence = f"{_WORDS.get(options.verb, '')} {target}{_doubt(options.verb, answer)}."
    if options.verb == "drain":
        more = "; more wait, so drain it again" if answer.get("has_more") else ""
        counts = f"{answer.get('deleted')} deleted, {answer.get('at_work')} running"
        sentence = f"Drained {target}: {counts}{more}."
    return remote_app.confirm(options, answer, sentence)


def _doubt(verb: str, answer: Mapping[str, Any]) -> str:
    """Return what may be wrong with a key that was paused or resumed: another one was meant."""
    tasks = "" if answer.get("waiting") else "has no tasks"
    if verb == "resume" and answer.get("was") == "open":
        return f", which {' and '.join(filter(None, [tasks, 'was neither paused nor blocked']))}"
    return f", which {tasks}" if verb == "pause" and tasks else ""


COMMAND = Command(
    "lanes",
    "list lanes and their keys; pause, resume, drain a key",
    "List lanes with what waits in each: at most 1,000 tasks are counted. `keys` lists the keys of "
    "one by pages, `show` a key with its first tasks.",
    add_options,
    shared.subcommand_or(_list),
    remote_app.EPILOG.format(name="lanes")
    + " --json prints {lanes: [{name, waiting, oldest_s, paused, "
    "blocked, order, limit, rate, weight, queue}], next}; `keys` prints {keys: [{key, waiting, "
    "first, is_paused, blocked_by, claims}], next}; a verb prints {lane, key, was, waiting}, as "
    "the key was before, and a drain {lane, key, deleted, at_work, has_more}.",
)
