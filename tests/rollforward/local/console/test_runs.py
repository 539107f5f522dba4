"""The console's pages of runs, with any app that answers GET /control/runs."""

import http.server
import json
import threading
from dataclasses import dataclass, field
from urllib.parse import unquote

import pytest

from handlers.shared.formatting import state_word
from rollforward.local.console.reading import run_pictures
from rollforward.local.console.reading.runs import Part, Run, RunDetails
from rollforward.local.cron.cron import Cron
from rollforward.look.words import RUN_STATES
from tests.rollforward.local.console.conftest import EVIL, add_task

RUN = {
    "pattern": "batches",
    "id": "one/二",
    "name": "paint",
    "state": "running",
    "args": '{"colour": "藍"}',
    "started": "2026-11-22T10:00:00+00:00",
    "ended": None,
    "counts": {"done": 3, "skipped": 0, "failed": 1, "retrying": 1, "waiting": 5},
    "expected": 10,
    "is_partial": False,
    "retry_of": None,
    "retried_by": None,
    "verbs": ["cancel"],
}
DETAILS = {
    "run": RUN,
    "parts": [
        {"label": "a", "items": "ddf", "attempts": 2, "progressed": "2026-11-22T10:00:03+00:00"},
        {"label": "b", "items": "dr", "attempts": 1, "progressed": "2026-11-22T10:00:05+00:00"},
    ],
    "issues": [{"item": f"square {EVIL}", "outcome": "failed", "reason": "no colour"}],
    "cost": {"writes": 7},
}


@dataclass
class RunningApp:
    """An app that answers as the test says, and keeps what it was asked."""

    url: str = ""
    status: int = 200
    answers: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)


@pytest.fixture
def app(platform, loop_thread):
    """An app with runs, in the place of the one that sweeps."""
    running = RunningApp()

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            running.asked.append((self.command, unquote(self.path)))
            said = running.answers.get(unquote(self.path).partition("?")[0])
            self.send_response(running.status if said is not None else 404)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode() if said is not None else b"")

        do_GET = do_POST = answer

        def log_message(self, *arguments):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    running.url = f"http://127.0.0.1:{server.server_port}"
    old, platform.cron = platform.cron, Cron(running.url)
    loop_thread.run(platform.cron.open())
    running.answers = {
        "/control/runs": {"runs": [RUN], "next_before": None},
        "/control/runs/batches/one/二": DETAILS,
    }
    yield running
    loop_thread.run(platform.cron.stop())
    platform.cron = old
    server.shutdown()
    thread.join()
    server.server_close()


def test_runs_of_any_pattern_are_listed(browser, app):
    """State, progress, what failed, and what can be done; the filter and the page reach the app."""
    app.answers["/control/runs"]["next_before"] = "2026-11-22T10:00:00+00:00"

    page = browser.get("/runs?state=running&name=paint").text

    assert 'href="/runs/batches/one%2F%E4%BA%8C"' in page
    assert 'action="/runs/batches/one%2F%E4%BA%8C/cancel"' in page
    assert 'value="0.4000"' in page
    assert "state=running&name=paint&limit=25" in app.asked[-1][1]
    assert "before=2026-11-22T10%3A00%3A00%2B00%3A00" in page


def test_a_run_shows_its_items_its_issues_and_its_tasks(browser, app, engine):
    """Escaped; its tasks are those whose arguments name it."""
    body = json.dumps({"run_id": "one/二", "row": 7}, ensure_ascii=False).encode()
    mine = add_task(engine, body=body, path="/tasks/batches/paint")
    add_task(engine, body=b'{"run_id": "other"}', path="/tasks/batches/paint")
    engine.end_attempt(engine.begin_attempt(mine).id, status=429)

    page = browser.get("/runs/batches/one%2F%E4%BA%8C").text

    for part in ("no colour", "藍", "row 7", "1 deferred", "4 of 10 have ended"):
        assert part in page, part
    assert EVIL not in page
    assert page.count('class="dot is-') == 4
    assert "other" not in page
    assert 'href="/runs/batches/one%2F%E4%BA%8C"' in browser.get("/tasks").text


@pytest.mark.parametrize("verb", ["cancel", "resume", "retry"])
def test_a_run_is_told_what_to_do(browser, app, verb):
    """The verb goes to the app; the page is that of the run that goes on."""
    app.answers[f"/control/runs/batches/one/二:{verb}"] = {"id": "next"}

    answer = browser.post(f"/runs/batches/one%2F%E4%BA%8C/{verb}")

    assert app.asked[-1] == ("POST", f"/control/runs/batches/one/二:{verb}")
    assert (answer.status, answer.headers["location"]) == (303, f"/runs/batches/next?said={verb}")


def test_what_the_app_refuses_is_said(browser, app):
    """In its own words."""
    app.status = 409
    app.answers["/control/runs/batches/one/二:retry"] = {"detail": "none of its items failed"}

    answer = browser.post("/runs/batches/one%2F%E4%BA%8C/retry")

    assert answer.status == 409
    assert "none of its items failed" in answer.text


def test_an_app_without_runs_is_told_from_one_that_is_away(browser, app, platform):
    """And a run that it does not know is a 404."""
    app.answers = {"/control/runs/batches/gone": {"detail": "There is no such run."}}
    assert "This app lists no runs" in browser.get("/runs").text
    app.status = 404
    assert browser.get("/runs/batches/gone").status == 404

    platform.cron.app_url = "http://127.0.0.1:1"

    away = browser.get("/runs")
    assert (away.status, "The app does not answer" in away.text) == (200, True)
    assert browser.get("/runs/batches/gone").status == 502


@pytest.mark.parametrize("path", ["%0d%0aX:y/%0d%0aX:y", "batches/%00", "batches/a%0a", "%7f/a"])
def test_an_address_of_no_run_is_a_404(browser, app, path):
    """No app has a run whose id does not print."""
    app.status = 404

    assert browser.get(f"/runs/{path}").status == 404


@pytest.mark.parametrize(
    "nonsense",
    [{"runs": "x"}, {"runs": [1, {}]}, {"runs": [{"counts": [], "started": 7, "verbs": 1}]}],
)
def test_nonsense_of_an_app_is_shown_as_empty(browser, app, nonsense):
    """Its page is no error of ours."""
    app.answers["/control/runs"] = nonsense

    assert browser.get("/runs").status == 200


def details(*items, expected=0, state="running"):
    """A run whose parts have these items."""
    counts = dict.fromkeys(("done", "skipped", "failed", "retrying", "waiting"), 0)
    run = Run("p", "r", "n", state, "{}", 100.0, None, counts, expected, False, "", "", ())
    return RunDetails(run, [Part(str(i), text, 1, 101.0 + i) for i, text in enumerate(items)])


def test_each_item_is_a_dot_and_those_not_read_yet_are_there():
    """As long as they fit; the strokes of a row add up to it."""
    dots = run_pictures.dots_of(details("ddf", "d", expected=100))

    drawn = {name: path.count("M") for name, path in dots.paths.items()}
    assert (drawn["done"], drawn["failed"], dots.per_cell) == (2, 1, 1)
    lengths = [
        float(part.partition("M")[0]) for p in dots.paths.values() for part in p.split("h")[1:]
    ]
    assert sum(lengths) == pytest.approx(100 * dots.cell, abs=0.1)


def test_a_square_of_many_items_shows_the_worst():
    """A failed item is seen among a hundred thousand."""
    dots = run_pictures.dots_of(details("d" * 99_999 + "f"))

    assert dots.per_cell == 5
    assert dots.paths["failed"].count("M") == 1


def test_the_time_axis_holds_all_attempts():
    """Side by side where they overlap; struck ones say by what; none lies outside."""
    rows = [
        {"kind": kind, "started_at": 100 + i, "duration_ms": 1500.0, "status": status,
         "error": None, "faults": json.dumps(faults)}
        for i, (kind, status, faults) in enumerate(
            [("normal", 500, ["error"]), ("overlap", 200, ["overlap"]), ("normal", 429, [])]
        )
    ]  # fmt: skip

    axis = run_pictures.time_axis(details("ddd", "dd", expected=5), rows, now_s=110.0)

    assert axis is not None
    assert axis.seconds == 10.0
    assert axis.counts == {"failed": 1, "copy": 1, "retrying": 1}
    assert axis.faults == {"error": 1, "overlap": 1}
    assert len({bar.y for bar in axis.bars}) == 2
    assert all(0 <= bar.x <= bar.x + bar.width <= run_pictures.WIDTH for bar in axis.bars)
    assert axis.curve.startswith("0.0,160.0")
    assert axis.curve.endswith(",6.4")


@pytest.mark.parametrize("state", ["running", "finished", "cancelled"])
def test_a_run_has_one_word_in_the_app_and_in_the_console(state):
    """A person who goes from one to the other reads the same."""
    assert RUN_STATES[state].word == state_word(state)
