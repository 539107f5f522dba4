"""Commands against a deployed app: its console's API, with a token."""

from __future__ import annotations

import re

import pytest

from rollforward.cli.errors import NotAllowedError, NotFoundError, WrongUsageError
from tests.rollforward.cli.remote.conftest import OPERATOR, READER, Shop
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = one_emulator


def test_dead_tasks_are_listed_in_pages_and_filtered(shop: Shop) -> None:
    """As a table that says how to go on, and as JSON."""
    for tag in "abc":
        shop.desk.give_up(tag)
        shop.desk.world.clock.sleep(1)
    shop.desk.give_up("other", queue="mail", reason="KeyError: 'x'\nTraceback")

    first = shop.json("dead", "--limit", "3")
    text = shop.run("dead", "--queue", "mail")
    rest = shop.json("dead", "--limit", "3", "--after", first["next"])

    names = [row["task_name"] for row in first["dead_tasks"] + rest["dead_tasks"]]
    assert names == ["t-other", "t-c", "t-b", "t-a"]
    assert rest["next"] is None
    head, row = text.splitlines()
    assert head.split() == ["ID", "PATH", "QUEUE", "ERROR", "TIMES", "LAST", "REASON"]
    assert re.search(r" mail +KeyError +1 +\d{4}-.*Z  KeyError: 'x'$", row)
    assert "More: --after " in shop.run("dead", "--limit", "3")


def test_a_dead_task_is_shown_and_replayed_once(shop: Shop) -> None:
    dead_id = shop.desk.give_up("x")

    shown = shop.json("dead", "show", dead_id)
    text = shop.run("dead", "show", dead_id)
    replayed = shop.run("dead", "replay", dead_id)
    shop.desk.world.settle()

    assert (shown["id"], shown["body"]) == (dead_id, '{"tag": "x"}')
    assert "reason: ValueError: no such party\n" in text
    assert replayed == f"{dead_id}: replayed.\n"
    assert shop.desk.done == {"x": 1}
    assert shop.run("dead") == "No dead tasks.\n"


def test_many_dead_tasks_are_replayed_by_a_run(shop: Shop) -> None:
    """By ids, or all that a filter takes; the run can be looked at."""
    ids = [shop.desk.give_up(tag) for tag in "ab"]
    shop.desk.give_up("mail", queue="fan-out")
    shop.desk.give_up("other", queue="fan-out", error="KeyError")

    by_id = shop.json("dead", "replay", *ids)["run"]
    by_filter = shop.run("dead", "replay", "--all", "--queue", "fan-out", "--error", "KeyError")
    shop.desk.world.settle()

    assert shop.desk.done == {"a": 1, "b": 1, "other": 1}
    assert [row["task_name"] for row in shop.json("dead")["dead_tasks"]] == ["t-mail"]
    assert shop.json("runs", "show", by_id["pattern"], by_id["id"])["run"]["state"] == "finished"
    command = by_filter.removeprefix("Started a run: rollforward ").split()
    assert "done 1, " in shop.run(*command)


def test_a_filter_that_takes_nothing_does_not_say_that_there_is_nothing(shop: Shop) -> None:
    """A mistyped class of error looked like a calm night."""
    shop.desk.give_up("x")

    assert shop.run("dead", "--error", "ValueErrr") == "No dead tasks match.\n"


def test_dead_tasks_are_deleted(shop: Shop) -> None:
    dead_id = shop.desk.give_up("x")
    shop.desk.give_up("y")

    assert shop.json("dead", "delete", dead_id) == {"id": dead_id, "result": "deleted"}
    shop.run("dead", "delete", "--all")
    shop.desk.world.settle()
    assert shop.run("dead") == "No dead tasks.\n"
    assert shop.desk.done == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["dead", "replay"],
        ["dead", "replay", "x", "--all"],
        ["dead", "replay", "x", "--queue", "mail"],
        ["dead", "replay", *map(str, range(101))],
        ["dead", "--since", "yesterday"],
        ["tasks", "--state", "done"],
        ["queues", "pause", "default"],
    ],
)
def test_a_command_without_a_sense_changes_nothing(shop: Shop, arguments: list[str]) -> None:
    shop.desk.give_up("x")

    shop.run(*arguments, code=WrongUsageError.exit_code)

    assert len(shop.json("dead")["dead_tasks"]) == 1


def test_runs_are_listed_in_pages_and_controlled(shop: Shop) -> None:
    """A finished run has nothing to cancel."""
    for tag in "abc":
        shop.desk.give_up(tag)
        shop.run("dead", "replay", "--all")
        shop.desk.world.settle()
        shop.desk.world.clock.sleep(5)
    first = shop.json("runs", "--limit", "2")
    rest = shop.json("runs", "--limit", "2", "--after", first["next"])
    run_id = first["runs"][0]["id"]

    ids = [row["id"] for row in first["runs"] + rest["runs"]]
    assert len(ids) == len(set(ids)) == 3
    assert shop.json("runs", "--state", "running") == {"runs": [], "next": None}
    assert re.search(rf"^continuations  {run_id}  \S+ +finished +1 ", shop.run("runs"), re.M)
    refused = shop.run("runs", "cancel", "continuations", run_id, code=1)
    assert "does not take cancel" in refused


def test_tasks_and_queues_are_those_of_cloud_tasks(shop: Shop) -> None:
    shop.run("dead", "replay", shop.desk.give_up("x"))

    (task,) = shop.json("tasks")["tasks"]
    queues = {row["name"]: row for row in shop.json("queues")["queues"]}

    assert (task["path"], task["queue"], task["state"]) == ("/tasks/tests/act", "default", None)
    assert task["attempts"] == 0
    assert re.search(rf"^{task['id']} +default +/tasks/tests/act +0 ", shop.run("tasks"), re.M)
    assert queues["default"]["state"] == "running"
    assert queues["default"]["max_attempts"] == -1
    assert " unlimited" in shop.run("queues")


@pytest.mark.parametrize(
    "arguments",
    [
        ["dead", "show", "nothing"],
        ["dead", "replay", "nothing"],
        ["runs", "show", "continuations", "nothing"],
        ["runs", "retry", "dreams", "nothing"],
    ],
)
def test_what_is_not_there_ends_with_5(shop: Shop, arguments: list[str]) -> None:
    assert "There is no such" in shop.run(*arguments, code=NotFoundError.exit_code)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["runs", "show", "dreams", "1"], "There is no pattern dreams; it is one of tasks, "),
        (["tasks", "--queue", "dreams"], "Queue does not exist."),
    ],
)
def test_an_unknown_name_is_not_said_to_be_an_absent_console(
    shop: Shop, arguments: list[str], text: str
) -> None:
    """It sent operators to their access hook, which had let them in."""
    assert text in shop.run(*arguments, code=NotFoundError.exit_code)


def test_an_app_whose_console_lacks_a_route_has_no_api_for_the_command(shop: Shop) -> None:
    """As one of another version of the library."""
    error = shop.run("dead", "--prefix", "/rollforward/api/v1", code=NotFoundError.exit_code)

    assert "mounts no console at /rollforward/api/v1" in error


def test_a_reader_reads_and_changes_nothing(shop: Shop) -> None:
    dead_id = shop.desk.give_up("x")
    shop.token = READER

    refused = shop.run("dead", "replay", dead_id, code=NotAllowedError.exit_code)

    assert "Your role can only read." in refused
    assert len(shop.json("dead")["dead_tasks"]) == 1


def test_a_stranger_meets_no_console(shop: Shop) -> None:
    """Which an app does not tell from one that has none."""
    shop.token = "stranger"

    error = shop.run("dead", code=NotFoundError.exit_code)

    assert "mounts no console at /rollforward" in error
    assert "rf.Console(access=...)" in error


def test_another_prefix_is_another_console(shop: Shop) -> None:
    error = shop.run("dead", "--prefix", "/admin", code=NotFoundError.exit_code)

    assert "mounts no console at /admin" in error


def test_the_token_is_taken_from_the_environment(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And may stand in front of a verb as well as behind it."""
    from rollforward.cli import main

    monkeypatch.setenv("ROLLFORWARD_TOKEN", f"{OPERATOR}\n")

    assert main(["dead", "--url", shop.url, "delete", shop.desk.give_up("x")]) == 0
    assert shop.capsys.readouterr().out.endswith(": deleted.\n")
