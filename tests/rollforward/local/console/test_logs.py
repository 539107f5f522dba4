"""The console's page of logs."""

import logging
import re

import pytest

from rollforward.local.logs.tail import LogFilter
from rollforward.local.logs.terminal import Terminal, TerminalHandler
from tests.rollforward.local.conftest import ask
from tests.rollforward.local.console.conftest import EVIL, add_task, path_of


@pytest.fixture
def tail(platform):
    """The tail with a line of three services, one of them of a task."""
    tail = platform.log_tail
    tail.add("app", f"WARNING shop: {EVIL} [task default/t7]")
    tail.add("mail", "INFO 250 to ada@example.com")
    tail.note("cron", "ERROR", "/cron/sweep: 500 in 3 ms")
    return tail


def shown(browser, query=""):
    return re.findall(r'<a href="/logs\?service=(\w+)">', browser.get(f"/logs?{query}").text)


def test_the_lines_of_all_services_are_merged_newest_first(browser, tail):
    """Escaped, and with a link to the task that they are about."""
    page = browser.get("/logs").text

    assert shown(browser) == ["cron", "mail", "app"]
    assert EVIL not in page
    assert "&lt;script&gt;" in page
    assert 'href="/tasks/default/t7"' in page


def test_the_address_filters_them(browser, tail):
    """By service, level, text and task."""
    assert shown(browser, "service=mail") == ["mail"]
    assert shown(browser, "level=WARNING") == ["cron", "app"]
    assert shown(browser, "q=ADA@") == ["mail"]
    assert shown(browser, "task=default/t7") == ["app"]
    assert "No line matches" in browser.get("/logs?q=nothing").text


def test_the_older_link_meets_every_line_once(browser, platform):
    """Two hundred on a page."""
    for number in range(450):
        platform.log_tail.add("app", f"INFO x: line-{number}.")
    seen, path = [], "/logs?service=app"
    while path:
        page = browser.get(path).text
        seen += re.findall(r"line-(\d+)\.", page)
        older = re.search(r'<a href="([^"]+)" rel="next"', page)
        path = older[1].replace("&amp;", "&") if older else ""

    assert seen == [str(number) for number in reversed(range(450))]


@pytest.mark.parametrize("query", ["service=odd", "level=LOUD"])
def test_what_there_is_not_is_a_400_page(browser, query):
    """The page says which word it does not know."""
    assert browser.get(f"/logs?{query}").status == 400


def test_a_task_leads_to_its_lines(browser, engine):
    """By queue and name, as the lines carry them."""
    name = add_task(engine)

    assert (
        f'href="/logs?task={path_of(name).removeprefix("/tasks/")}"'
        in browser.get(path_of(name)).text
    )


def test_a_live_page_at_rest_costs_a_304(browser, tail):
    """As long as nothing is new; a new line is."""
    first = browser.get("/logs")
    again = browser.get("/logs", **{"If-None-Match": first.headers["etag"]})
    tail.add("app", "INFO x: news")
    after = browser.get("/logs", **{"If-None-Match": first.headers["etag"]})

    assert (first.status, again.status, again.text, after.status) == (200, 304, "", 200)


def test_what_the_platform_itself_logs_is_there(platform, capsys):
    """An attempt's end has its task; what is meant for the page alone is not in the terminal."""
    terminal = Terminal()
    logger = logging.getLogger("rollforward.local.cloudtasks.server.dispatcher")
    handler = TerminalHandler(terminal)
    logger.addHandler(handler)
    try:
        extra = {"task": "default/t7", "is_quiet": True}
        logger.error("/tasks/work: 500 in 3 ms", extra=extra)
        logger.error("dispatching failed")
    finally:
        logger.removeHandler(handler)

    (record,) = terminal.tail.newest(LogFilter(task="default/t7"), 10)
    assert (record.service, record.level, record.text) == (
        "tasks",
        "ERROR",
        "/tasks/work: 500 in 3 ms",
    )
    assert capsys.readouterr().err == "tasks      dispatching failed\n"


def test_a_program_reads_the_same_records(console, tail):
    """Filtered and in pages, as people do."""

    def read(query):
        return ask(console.address, "GET", f"/api/v1/logs?{query}")

    first = read("limit=2").json()
    rest = read(f"limit=2&before={first['next']}").json()

    assert [record["service"] for record in first["records"] + rest["records"]] == [
        *("cron", "mail", "app")
    ]
    assert rest["next"] is None
    assert read("task=default/t7").json()["records"][0]["lines"] == [f"shop: {EVIL}"]
    assert [read(bad).status for bad in ("limit=0", "limit=x", "level=odd")] == [400] * 3
