"""Charts of latency and errors, the workers at work, and what the first page says after a hang."""

import re
import time

import pytest

from rollforward.local.console.pages.figures import latency
from rollforward.local.console.reading import attempt_stats
from tests.rollforward.local.console.conftest import EVIL, add_task, path_of


def end(engine, *, path="/tasks/work", queue="default", **response):
    """Deliver a task once."""
    name = add_task(engine, queue, path=path)
    attempt = engine.begin_attempt(name)
    engine.end_attempt(attempt.id, **response)
    return name


def cells(page, row):
    """Return the numbers of a row of the table, by their labels."""
    part = next(part for part in page.split("<tr>") if f">{row}</a></th>" in part)
    shown = re.findall(r'data-label="([^"]+)"[^>]*>(.*?)</td>', part, re.DOTALL)
    return {label: " ".join(re.sub("<[^>]+>", " ", html).split()) for label, html in shown}


def test_attempts_are_counted_by_task_and_by_queue(browser, engine):
    """Failed, deferred and done apart; a copy says nothing of its task."""
    for status in (200, 500, 503, 204):
        end(engine, path="/tasks/mail", queue="mails", status=status)
    end(engine, path="/tasks/work", error="DEADLINE_EXCEEDED")

    by_task = browser.get("/latency").text
    by_queue = browser.get("/latency?by=queue").text

    assert cells(by_task, "/tasks/mail")["Failed"] == "1 25.0 %"
    assert cells(by_task, "/tasks/mail")["Deferred"] == "1"
    assert cells(by_task, "/tasks/work")["Failed"] == "1 100.0 %"
    assert cells(by_queue, "mails")["Attempts"] == "4"
    assert cells(browser.get("/latency?queue=mails").text, "/tasks/mail")["Attempts"] == "4"
    assert "/tasks/work</a>" not in browser.get("/latency?queue=mails").text


def test_the_charts_have_their_axes_and_their_numbers_in_a_table(browser, engine):
    """Both scales as texts; the table holds what the lines show."""
    end(engine, status=200)
    end(engine, status=500)

    page = browser.get("/latency?range=5m").text

    assert page.count('class="scale"') == 2
    assert "<span>100 %</span><span>75 %</span>" in page
    assert page.count('<polyline class="line') >= 2
    assert re.search(r'<rect class="bar is-failed" [^>]+ y="80.0"', page)
    numbers = page.partition('id="numbers"')[2].partition("</details>")[0]
    assert '<td class="n">2</td><td class="n">50 %</td>' in numbers


def test_a_hundred_thousand_attempts_cost_no_more_than_five_thousand(browser, engine, monkeypatch):
    """The page reads the newest alone, says so, and shows at most 60 rows."""
    monkeypatch.setattr(latency, "MAX_ATTEMPTS", 70)
    for number in range(75):
        end(engine, path=f"/tasks/t{number:02}", status=200)

    page = browser.get("/latency").text

    assert "Only the newest 70 attempts" in page
    assert page.count('<th scope="row"><a') == latency.MAX_ROWS
    assert engine.history.attempts_since(0, 70)[0]["path"] == "/tasks/t05"


@pytest.mark.parametrize(
    "query", ["range=2h", "by=worker", "sort=name", f"by={EVIL}", "range=%00", "sort=__class__"]
)
def test_an_unknown_choice_is_refused_with_the_name_of_its_field(browser, query):
    """Escaped, and with the values that there are."""
    answer = browser.get(f"/latency?{query.replace('<', '%3C').replace('>', '%3E')}")

    assert answer.status == 400
    assert f"{query.partition('=')[0]}: one of" in answer.text
    assert EVIL not in answer.text


def test_a_percentile_is_one_of_the_durations(engine):
    """By nearest rank; nothing has none."""
    figures = attempt_stats.AttemptStats(20, 0, 0, [float(ms) for ms in range(1, 21)])

    assert [figures.percentile_ms(p) for p in (50, 95, 100)] == [10.0, 19.0, 20.0]
    assert attempt_stats.AttemptStats.of([]).error_rate == 0.0


def test_the_workers_page_names_what_runs_now(browser, engine, platform):
    """The longest first, each with the way to its task; ended ones are gone."""
    first = add_task(engine, path="/tasks/slow")
    engine.begin_attempt(first)
    engine.clock.advance(40)
    second = add_task(engine, path="/tasks/quick")
    attempt = engine.begin_attempt(second)

    page = browser.get("/workers").text
    engine.end_attempt(attempt.id, status=200)

    assert page.index(f'href="{path_of(first)}"') < page.index(f'href="{path_of(second)}"')
    assert f"<b>{platform.wanted}</b> Worker processes" in page
    assert path_of(second) not in browser.get("/workers").text


def test_a_hang_needs_attention_while_it_lasts_and_after_it(browser, engine):
    """A request of 20 seconds that runs, then the same that has ended; then one without answer."""
    name = add_task(engine)
    attempt = engine.begin_attempt(name)
    engine.clock.source = lambda: time.time() + 20  # An attempt is timed by the real clock.
    assert "default: an attempt runs for 20 s" in browser.get("/").text

    engine.end_attempt(attempt.id, status=200)
    assert 'href="/latency?range=5m&amp;sort=p95"' in browser.get("/").text
    assert "Nothing." not in browser.get("/").text.partition('id="flow"')[0]

    end(engine, error="UNAVAILABLE")
    assert "1 attempt without a response in the last 5 minutes" in browser.get("/").text


def test_a_quiet_platform_has_nothing_slow(browser, engine):
    """Attempts that were answered at once are no news."""
    end(engine, status=200)

    page = browser.get("/").text

    assert "attempt took" not in page
    assert "without a response" not in page


def test_the_graphs_of_the_first_page_have_axes(browser):
    """From nothing to the peak, and since when."""
    page = browser.get("/").text

    assert page.count('class="scale"') == 3
    assert page.count("<span>now</span>") == 3
