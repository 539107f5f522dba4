"""Commands against the local platform: all tasks with their states, and levers of queues."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollforward.cli import main
from tests.infra.runs import sampling
from tests.infra.stack import ROOT, Stack, running_stack, until
from tests.rollforward.local.installed import NEEDS_DATASTORE

pytestmark = [pytest.mark.process, NEEDS_DATASTORE]

APP = """
from flask import Flask
import rollforward as rf

app = Flask(__name__)


@rf.task
def greet(name: str) -> None:
    if name == "nobody":
        raise rf.tasks.Reject("there is nobody")


@app.get("/greet/<name>")
def enqueue(name: str) -> str:
    greet.enqueue(name)
    return "enqueued"


serve = rf.serve(app, greet)
"""
LIMIT_S = 60.0
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An app of one file on the local platform."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "hello.py").write_text(APP)
    with running_stack(folder=folder, program=("rollforward", "run")) as running:
        yield running


@pytest.fixture(scope="module")
def run(stack: Stack) -> Run:
    """A way to run a command; returns its JSON."""

    def run_command(*arguments: str) -> Any:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            assert main([*arguments, "--json", "--console", stack.console]) == 0
        return json.loads(output.getvalue())

    return run_command


def test_tasks_are_listed_by_queue_and_state_in_pages(stack: Stack, run: Run) -> None:
    for _ in range(3):
        stack.visitor.get(f"{stack.app}/greet/world", timeout=30).raise_for_status()
    until(lambda: len(run("tasks", "--state", "done")["tasks"]) == 3, LIMIT_S)

    first = run("tasks", "--queue", "default", "--limit", "2")
    rest = run("tasks", "--queue", "default", "--limit", "2", "--after", first["next"])

    assert [row["path"] for row in first["tasks"] + rest["tasks"]] == ["/tasks/greet"] * 3
    assert {row["state"] for row in first["tasks"]} == {"done"}
    assert first["tasks"][0]["attempts"] == 1
    assert run("tasks", "--queue", "outbox")["tasks"] == []


def test_a_dead_task_of_the_local_app_is_shown_and_replayed(stack: Stack, run: Run) -> None:
    """By the console that each app has on the local platform, without a token."""
    stack.visitor.get(f"{stack.app}/greet/nobody", timeout=30).raise_for_status()
    until(lambda: len(run("dead")["dead_tasks"]) == 1, LIMIT_S)
    (dead,) = run("dead")["dead_tasks"]

    assert dead["path"] == "/tasks/greet"
    assert "there is nobody" in run("dead", "show", dead["id"])["reason"]
    assert run("dead", "replay", dead["id"])["result"] == "replayed"
    until(lambda: run("dead")["dead_tasks"] not in ([], [dead]), LIMIT_S)  # It dies again.


def test_a_queue_is_paused_purged_and_resumed(stack: Stack, run: Run) -> None:
    paused = run("queues", "pause", "default")
    stack.visitor.get(f"{stack.app}/greet/world", timeout=30).raise_for_status()
    waiting = {row["name"]: row for row in run("queues")["queues"]}["default"]
    purged = run("queues", "purge", "default")
    resumed = run("queues", "resume", "default")

    assert (paused["state"], waiting["state"], resumed["state"]) == ("paused", "paused", "running")
    assert (waiting["waiting"], purged["waiting"]) == (1, 0)
    assert waiting["max_attempts"] == -1


def test_a_queue_that_is_not_there_ends_with_5(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queues", "purge", "letters", "--console", stack.console]) == 5
    assert "Queue does not exist" in capsys.readouterr().err
    assert main(["queues", "resume", "default", "--console", stack.console]) == 0
    assert capsys.readouterr().out == "Resumed default.\n"


def test_runs_are_those_of_the_app(stack: Stack, run: Run) -> None:
    run("dead", "delete", "--all")
    until(lambda: run("runs", "--state", "running")["runs"] == [], LIMIT_S)

    assert run("runs")["runs"][0]["pattern"] == "continuations"


@sampling.long
def test_the_platform_of_a_folder_is_found_there(tmp_path: Path) -> None:
    """Without a port, and whichever other platforms run; a stopped one leaves no address."""
    (tmp_path / "hello.py").write_text(APP)
    ports = {f"{name}_PORT": "0" for name in ("APP", "CONSOLE", "TASKS", "MEMCACHE", "MAIL")}
    plain = {name: value for name, value in os.environ.items() if name != "CONSOLE_PORT"}
    env = {**plain, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "rollforward"]
    process = subprocess.Popen(
        [*command, "run", "--json", "--no-reload"],
        cwd=tmp_path,
        env={**env, **ports},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        where = json.loads(process.stdout.readline())
        address = (tmp_path / ".dev" / "console").read_text().strip()
        queues = subprocess.run(
            [*command, "queues"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        shell = subprocess.run(
            [*command, "shell", "-c", "print(app.name)"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()

    assert address == where["console"]
    assert [line.split()[0] for line in queues.stdout.splitlines()] == [
        "QUEUE",
        "default",
        "outbox",
    ]
    assert shell.stdout == "hello\n"
    assert not (tmp_path / ".dev" / "console").exists()
