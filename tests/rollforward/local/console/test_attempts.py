"""A run's tasks and attempts, as this machine's queue keeps them; the rest is the app's console."""

import json

import pytest

from handlers.shared.formatting import state_word
from rollforward.local.cloudtasks.store.records import TaskRecord
from rollforward.local.console.pages.app_console import entity_url
from rollforward.local.console.reading import attempt_axis, run_times
from rollforward.look.words import RUN_STATES
from tests.rollforward.local.console.conftest import EVIL, add_task, path_of

RUN = "batches/one%2F%E4%BA%8C"


@pytest.mark.parametrize(
    "path", ["/dead?queue=mail", "/outbox", "/runs?state=running", f"/runs/{RUN}"]
)
def test_pages_of_the_app_s_console_are_led_to(browser, platform, path):
    """With what the address asks for: links to them stay good."""
    answer = browser.get(path)

    assert (answer.status, answer.headers["location"]) == (
        302,
        f"{platform.app_url}/rollforward{path}",
    )


@pytest.mark.parametrize("path", ["%0d%0aX:y/%0d%0aX:y", "batches/%00", "batches/a%0a", "%7f/a"])
def test_an_address_of_no_run_adds_no_header(browser, platform, path):
    """It leads to the app, which has no such run."""
    answer = browser.get(f"/runs/{path}")

    assert answer.headers["location"].startswith(f"{platform.app_url}/rollforward/runs/")
    assert "x" not in answer.headers


def test_the_tasks_of_a_run_are_those_whose_arguments_name_it(browser, engine, platform):
    """Escaped, with their attempts by outcome, and the way to the run."""
    body = json.dumps({"run_id": "one/二", "row": EVIL}, ensure_ascii=False).encode()
    mine = add_task(engine, body=body, path="/tasks/batches/paint")
    add_task(engine, body=b'{"run_id": "other"}', path="/tasks/batches/paint")
    engine.end_attempt(engine.begin_attempt(mine).id, status=429)

    page = browser.get(f"/attempts/{RUN}").text

    assert "1 deferred" in page
    assert f'href="{platform.app_url}/rollforward/runs/{RUN}"' in page
    assert f'href="{entity_url("batches", "one/二")}"' in page
    assert EVIL not in page
    assert "other" not in page
    assert f'href="/runs/{RUN}"' in browser.get("/tasks").text


def test_a_run_without_tasks_has_a_page_that_says_so(browser):
    """The queue keeps the newest tasks only."""
    answer = browser.get("/attempts/batches/gone")

    assert (answer.status, "has no task of this run" in answer.text) == (200, True)


def test_the_axis_holds_all_attempts():
    """Side by side where they overlap; struck ones say by what; none lies outside."""
    rows = [
        {"kind": kind, "started_at": 100 + i, "duration_ms": 1500.0, "status": status,
         "error": None, "faults": json.dumps(faults)}
        for i, (kind, status, faults) in enumerate(
            [("normal", 500, ["error"]), ("overlap", 200, ["overlap"]), ("normal", 429, [])]
        )
    ]  # fmt: skip

    axis = attempt_axis.attempt_axis(rows, now_s=110.0)

    assert axis is not None
    assert axis.seconds == 3.5
    assert axis.counts == {"failed": 1, "copy": 1, "retrying": 1}
    assert axis.faults == {"error": 1, "overlap": 1}
    assert len({bar.y for bar in axis.bars}) == 2
    assert all(0 <= bar.x <= bar.x + bar.width <= attempt_axis.WIDTH for bar in axis.bars)
    assert attempt_axis.attempt_axis([], now_s=110.0) is None


def a_task(sequence, created_at, **changes):
    """Return a task as the emulator keeps it."""
    path = f"/tasks/jobs/t{sequence}"
    fields = (sequence, f"q/tasks/{sequence}", "q", path, True, False, b"", created_at)
    return TaskRecord(*fields, created_at, created_at, **changes)


def an_attempt(sequence, started_at, seconds, status):
    """Return an attempt as the emulator keeps it; without seconds it is running."""
    duration_ms = None if seconds is None else seconds * 1000
    return {"sequence": sequence, "kind": "normal", "started_at": started_at, "error": None,
            "duration_ms": duration_ms, "status": status, "faults": "[]"}  # fmt: skip


def test_the_time_of_a_run_is_spent_in_queues_running_and_between_attempts():
    """Each second of each task once: what waits, runs, or is to be retried."""
    retried = a_task(1, 100.0, ended_at=111.0, state="done")
    waits, runs = a_task(2, 101.0), a_task(3, 102.0)
    rows = [
        an_attempt(1, 102.0, 3, 500),
        an_attempt(1, 109.0, 2, 200),
        {**an_attempt(1, 109.0, 90, 200), "kind": "duplicate"},
        an_attempt(3, 106.0, None, None),
    ]

    times = run_times.run_times([runs, waits, retried], rows, now_s=112.0)

    assert times is not None
    assert times.spent_s == {"queue": 2.0 + 11.0 + 4.0, "running": 5.0 + 6.0, "waiting": 4.0}
    assert (times.begins, times.seconds, times.slowest) == (100.0, 12.0, waits)
    assert [lane.outcome for lane in times.lanes] == ["done", "queued", "running"]
    kinds = [rect.kind for rect in times.lanes[0].rects]
    assert kinds == ["queue", "running", "waiting", "running"]
    assert [event.text for event in times.events if event.task is retried] == [
        "Created",
        "Attempt 1 begins",
        "Attempt 1 failed: 500",
        "Attempt 2 begins",
        "Attempt 2 done: 200",
        "Done",
    ]
    assert times.events == sorted(times.events, key=lambda event: event.at)
    assert run_times.run_times([], [], now_s=1.0) is None


def test_many_tasks_of_a_run_are_drawn_in_part():
    """At most 60 lines and 60 events, and nothing is outside of the axis."""
    tasks = [a_task(number, 100.0 + number) for number in range(500)]

    times = run_times.run_times(tasks, [], now_s=700.0)

    assert times is not None
    assert (len(times.lanes), len(times.events), times.event_count) == (60, 60, 500)
    for lane in times.lanes:
        assert all(0 <= rect.x <= rect.x + rect.width <= run_times.WIDTH for rect in lane.rects)


def test_a_run_s_page_says_where_its_time_went_and_leads_on(browser, engine):
    """To its tasks, logs, traces and dead tasks."""
    name = add_task(engine, body=b'{"run_id": "r1"}', path="/tasks/batches/paint")
    engine.end_attempt(engine.begin_attempt(name).id, status=500)

    page = browser.get("/attempts/batches/r1").text

    assert "Where time went" in page
    assert "Attempt 1 failed: 500" in page
    for link in (
        "/logs?q=r1",
        "/traces?run=r1",
        "/rollforward/dead?pattern=batches",
        path_of(name),
    ):
        assert f'{link}"' in page


@pytest.mark.parametrize("state", ["running", "finished", "cancelled"])
def test_a_run_has_one_word_in_the_app_and_in_the_console(state):
    """A person who goes from one to the other reads the same."""
    assert RUN_STATES[state].word == state_word(state)
