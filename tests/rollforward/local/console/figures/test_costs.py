"""What routes and tasks cost, as the console shows it."""

import re

import pytest

from rollforward.local.console.reading.route_costs import MAX_ROWS, route_costs
from rollforward.local.prices import price_list
from rollforward.runtime import Cost, Meter
from rollforward.runtime.process.cost_report import CostReport


@pytest.fixture
def report(platform):
    """Return a function that returns the report of a further process."""
    return lambda: CostReport(platform.reports_folder, Meter())


def rows_of(page):
    """Return the cells of each row below the headings of routes and tasks."""
    tables = page.partition("<details>")[0]
    rows = re.findall(r"<tr>\s*<th scope=.*?</tr>", tables, re.DOTALL)
    return [[re.sub(r"<.*?>", "", cell).strip() for cell in row.split("\n")[1:-1]] for row in rows]


def test_the_calls_of_all_processes_are_added_up(browser, report):
    """A dead process's report stays. The dearest stands first, tasks before routes."""
    for _ in range(2):
        one = report()
        one.add("route", "GET /blog/<post_id>", Cost(reads=3, query_reads=1))
        one.add("task", "/tasks/pages", Cost(writes=5, deletes=2, task_operations=1))
        one.add("route", "GET /", Cost())
        one.write()

    assert rows_of(browser.get("/costs").text) == [
        ["/tasks/pages", "2", "0", "6", "4", "2", "$3.30"],
        ["GET /blog/&lt;post_id&gt;", "2", "8", "0", "0", "0", "$1.20"],
        ["GET /", "2", "0", "0", "0", "0", "$0.00"],
    ]


def test_what_no_call_asked_for_is_shown_apart(browser, report, platform):
    """Threads that store what many calls have gathered are nobody's."""
    one = report()
    one.meter.delivered(10)
    one.meter.delivered(10)
    one.add("task", "/tasks/pages", Cost(task_operations=1))
    one.write()

    assert "0 deletes, 1 task operations" in browser.get("/costs").text
    found = {
        row.kind: row.task_operations for row in route_costs(platform.reports_folder, price_list())
    }
    assert found == {"task": 1, "rest": 1}


def test_a_page_is_bounded(browser, report):
    """It says how many it leaves out: the cheapest."""
    one = report()
    for number in range(MAX_ROWS + 7):
        one.add("route", f"GET /{number}", Cost(reads=number))
    one.write()

    page = browser.get("/costs").text
    assert len(rows_of(page)) == MAX_ROWS
    assert "7 more are cheaper" in page
    assert "GET /6<" not in page


def test_the_page_says_when_nobody_has_called(browser):
    """An app that has just started has no report."""
    assert "has not been called yet" in browser.get("/costs").text


def test_the_page_says_which_prices_are_not_verified(browser):
    """Each has its source; no bill was ever seen."""
    page = browser.get("/costs").text
    assert page.count("not verified") == 1
    assert "as of 2026-11-24" in page
    assert "https://cloud.google.com/tasks/pricing" in page


def test_a_console_that_is_gone_fails_no_call(tmp_path):
    """The app goes on without anybody who reads it."""
    CostReport(tmp_path / "gone", Meter()).write()
