"""A run's tasks and attempts, as this machine's queue keeps them; the rest is the app's console."""

import json

import pytest

from handlers.shared.formatting import state_word
from rollforward.local.console.reading import attempt_axis
from rollforward.look.words import RUN_STATES
from tests.rollforward.local.console.conftest import EVIL, add_task

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
    assert EVIL not in page
    assert "other" not in page
    assert f'href="/runs/{RUN}"' in browser.get("/tasks").text


def test_a_run_without_tasks_has_a_page_that_says_so(browser):
    """The queue keeps the newest tasks only."""
    answer = browser.get("/attempts/batches/gone")

    assert (answer.status, "keeps no task of this run" in answer.text) == (200, True)


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


@pytest.mark.parametrize("state", ["running", "finished", "cancelled"])
def test_a_run_has_one_word_in_the_app_and_in_the_console(state):
    """A person who goes from one to the other reads the same."""
    assert RUN_STATES[state].word == state_word(state)
