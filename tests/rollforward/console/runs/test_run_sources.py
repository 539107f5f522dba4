"""Runs that an app keeps itself: what a source returns wrongly harms no other run."""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.console.pages.runs import _to_values
from rollforward.operations import run_sources
from rollforward.operations.run_sources import (
    AppRuns,
    Run,
    RunDetails,
    RunSource,
    RunState,
)
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks.runs import RunIssue, RunQuery, readable
from tests.infra.world import Services
from tests.rollforward.console.conftest import API, desk_with
from tests.rollforward.console.test_pages import Browser

CLIENTS: Any = None
NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
NAIVE = NOON.replace(tzinfo=None)


def minutes_ago(minutes: float) -> datetime.datetime:
    return NOON - datetime.timedelta(minutes=minutes)


def source_of(name: str, *runs: dict[str, Any], in_pages: bool = False) -> RunSource:
    """Return a source of these runs, of an app that looks at no argument, unless in pages."""

    def newest(
        clients: Clients, started_before: datetime.datetime | None, limit: int
    ) -> Sequence[Run]:
        listed = [source.run(str(number), **fields) for number, fields in enumerate(runs)]
        return listed[:limit] if in_pages else listed

    source = RunSource(
        name, newest, lambda _, own_id: RunDetails(source.run(own_id, **runs[int(own_id)]))
    )
    return source


def run_at(started: datetime.datetime | None, **fields: Any) -> dict[str, Any]:
    return {"state": "running", "started": started, **fields}


def pages_of(*sources: RunSource, limit: int) -> list[list[str]]:
    """Return the ids of each page; a list that does not end is cut after ten."""
    registry, query = Registry(*sources, patterns=[AppRuns()]), RunQuery(limit=limit)
    pages = []
    while len(pages) < 10:
        page = registry.runs(CLIENTS, query)
        pages.append([run.id for run in page.runs])
        if page.next_before is None:
            break
        query = RunQuery(limit=limit, before=page.next_before)
    return pages


@pytest.mark.parametrize(
    "bad",
    [
        run_at(NAIVE),
        run_at(NOON, ended=NAIVE),
        run_at(minutes_ago(2), state="paused"),
    ],
    ids=["naive start", "naive end", "unknown state"],
)
def test_a_source_of_bad_runs_is_one_line_that_says_why(
    services: Services, bad: dict[str, Any]
) -> None:
    """The runs of others are listed, and the page of such a run answers."""
    desk = desk_with(
        services, source_of("bad", run_at(NOON), bad), source_of("good", run_at(minutes_ago(1)))
    )
    browser = Browser(desk)

    listed = desk.ask(f"{API}/runs").get_json()["runs"]
    text = browser.read("/runs")

    assert [(run["id"], run["state"]) for run in listed] == [
        ("bad:", "unreadable"),
        ("good:0", "running"),
    ]
    assert "the run bad:1 has" in text
    assert "Cannot be read" in browser.read("/runs/app/bad%3A1")
    assert "Cannot be read" not in browser.read("/runs/app/good%3A0")


@pytest.mark.fast
@pytest.mark.parametrize("in_pages", [False, True])
def test_the_list_of_a_source_that_ignores_the_time_ends(*, in_pages: bool) -> None:
    """Nothing is listed twice."""
    source = source_of(
        "load", *(run_at(minutes_ago(number)) for number in range(4)), in_pages=in_pages
    )

    pages = pages_of(source, limit=2)

    assert len(pages) < 10
    listed = [run_id for page in pages for run_id in page]
    assert listed == [f"load:{number}" for number in range(2 if in_pages else 4)]


@pytest.mark.fast
def test_pages_of_a_source_without_order_are_full() -> None:
    """Newest first, as many as the page takes."""
    source = source_of("load", *(run_at(minutes_ago(minutes)) for minutes in (3, 1, 2, 0)))

    assert pages_of(source, limit=2) == [["load:3", "load:1"], ["load:2", "load:0"], []]


@pytest.mark.fast
def test_runs_without_a_start_are_beside_the_pages() -> None:
    """The first page has them all, and each page its share of the others."""
    undated = source_of("undated", *(run_at(None) for _ in range(4)))
    dated = source_of("dated", *(run_at(minutes_ago(number)) for number in range(3)))

    first, second, *_ = pages_of(undated, dated, limit=2)

    assert first == [*(f"undated:{number}" for number in range(4)), "dated:0", "dated:1"]
    assert second == ["dated:2"]


def fail(*_: object) -> Any:
    raise rpc_errors.RetryError("gave up", cause=rpc_errors.ServiceUnavailable("away"))


def test_an_outage_is_no_strange_row(services: Services) -> None:
    """The lists and the pages answer 503, whichever way ndb names it."""
    desk = desk_with(services, RunSource("load", fail, fail))
    browser = Browser(desk)

    for path in ("/runs", "/runs/app/load%3A1"):
        assert browser.open(path).status_code == 503, path
        assert desk.ask(API + path).status_code == 503, path
    with pytest.raises(rpc_errors.RetryError):
        readable("flows", "f", "order", NOON, fail)


class Import(ndb.Model):
    """The row of the documented example."""

    started = ndb.DateTimeProperty(required=True)


def example() -> RunSource:
    """Return the source that the module's docstring shows."""
    blocks = re.findall(r"(?m)(?:^(?: {4}.*)?\n)+", run_sources.__doc__ or "")
    names: dict[str, Any] = {
        **{"Import": Import, "RunSource": RunSource, "UTC": datetime.UTC},
        **{"Clients": Clients, "datetime": datetime.datetime, "Run": Run, "details": fail},
    }
    exec(textwrap.dedent(max(blocks, key=len)), names)
    source: RunSource = names["IMPORTS"]
    return source


def test_the_documented_source_is_listed_to_its_end(services: Services) -> None:
    """As an app would copy it."""
    desk = desk_with(services, example())
    starts = [minutes_ago(number).replace(tzinfo=None) for number in range(5)]
    with desk.world.context():
        ndb.put_multi(
            [Import(id=str(number), started=started) for number, started in enumerate(starts)]
        )

    listed, before, asked = [], "", 0
    while before is not None and asked < 10:
        page = desk.ask(f"{API}/runs", query_string={"limit": 2, "before": before}).get_json()
        listed += [run["id"] for run in page["runs"]]
        before, asked = page["next_before"], asked + 1

    assert listed == [f"import:{number}" for number in range(5)]


def test_a_failed_run_is_on_the_overview_whatever_its_pattern(services: Services) -> None:
    """Builds of views and runs of an app's own, too; "no run has failed" stood above them."""
    failed = source_of("import", run_at(minutes_ago(1), state="failed"))
    browser = Browser(desk_with(services, failed))

    overview = browser.read("/")

    assert "1 run failed" in overview
    assert "No alerts" not in overview
    assert re.search(r"<b>1</b>[^b]*Failed runs", overview)
    assert "import:0" in browser.read("/runs?pattern=app&state=failed")


def test_items_that_are_entities_have_a_name_in_the_api(services: Services) -> None:
    """The command line prints it: a key as URLs have it says nothing, and was cut besides."""

    def details(*_: object) -> RunDetails:
        key = ndb.Key("Order", "o7").urlsafe().decode()
        issues = [RunIssue(key, "failed", "no category"), RunIssue("line 7", "failed", "no price")]
        return RunDetails(mend.run("0", **run_at(minutes_ago(1))), issues=issues)

    mend = RunSource("mend", lambda *_: [], details)
    desk = desk_with(services, mend)

    shown = desk.ask(f"{API}/runs/app/mend:0").get_json()

    assert [issue["name"] for issue in shown["issues"]] == ["Order o7", "line 7"]


def test_a_pattern_that_does_not_exist_is_named_with_those_that_do(services: Services) -> None:
    """ "No such run" sent people to look for another id."""
    answer = desk_with(services).ask(f"{API}/runs/views/sales.1.2")

    assert answer.status_code == 404
    assert "no pattern views; it is one of" in answer.get_json()["detail"]
    assert "materialized-views" in answer.get_json()["detail"]


def test_two_sources_of_one_name_are_refused() -> None:
    """The page of a run asks the first of them alone."""
    with pytest.raises(TypeError, match="a name of its own"):
        Registry(source_of("import"), source_of("import"), patterns=[AppRuns()])


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_the_time_that_a_run_took_is_shown_where_it_is_known(services: Services) -> None:
    """One that has failed waits for a person, so its time goes on; a cancelled one has no end."""
    desk = desk_with(services)
    now_utc = desk.world.clock.now()
    began = now_utc - datetime.timedelta(minutes=5)
    ended = began + datetime.timedelta(minutes=2)

    def took(
        state: RunState,
        started: datetime.datetime | None = None,
        ended: datetime.datetime | None = None,
    ) -> float | None:
        run = source_of("import").run("i1", state, started, ended)
        with desk.app.app_context():
            shown: float | None = _to_values(run)["elapsed_s"]
        return shown

    assert [took("running", began), took("failed", began)] == [300.0, 300.0]
    assert took("finished", began, ended) == 120.0
    assert took("finished", ended, began) == 0.0  # By clocks that differ.
    assert [took("cancelled", began), took("running", None, ended)] == [None, None]
