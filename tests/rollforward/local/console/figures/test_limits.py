"""How near the app came to the limits of Datastore, as the console shows it."""

import re

from rollforward.local.console.reading.limit_uses import limit_uses
from rollforward.runtime.channel import limits
from rollforward.runtime.channel.limits import Use


def test_the_largest_use_of_all_processes_stands_first(browser, platform, monkeypatch):
    """Nearest first: by its share of the limit, with what it was and what to do."""
    report = limits.report
    folder = str(platform.reports_folder)
    report(folder, {"commit": Use(480, "a commit"), "key": Use(30, "a key of Book")})
    monkeypatch.setattr(limits.os, "getpid", lambda: 1)
    report(folder, {"commit": Use(20, "a commit"), "entity": Use(900_000, "<b>Book")})

    page = browser.get("/limits").text
    assert re.findall(r'<th scope="row">(.*?)</th>', page) == ["commit", "entity", "key"]
    assert "96 %" in page
    assert "900\u202f000" in page
    assert "&lt;b&gt;Book" in page
    assert "commit in several parts" in page


def test_a_report_that_grows_is_replaced(platform):
    """A process has one file, whoever of its threads wrote last."""
    folder = platform.reports_folder
    for size in (3, 5):
        limits.report(str(folder), {"lookup": Use(size, "a lookup of Book")})

    assert [(use.name, use.size, use.percent) for use in limit_uses(folder)] == [("lookup", 5, 1)]
    assert len([*folder.glob("*.limits"), *folder.glob("*.json")]) == 1


def test_a_console_that_is_gone_fails_no_call(tmp_path):
    """The app goes on without anybody who reads it."""
    limits.report(str(tmp_path / "gone"), {"commit": Use(1, "a commit")})
