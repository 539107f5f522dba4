"""The list of all runs: each pattern's in one order, by pages, and none that breaks it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

import pytest
from google.cloud import ndb

from pipelines.counters import load as clicks
from pipelines.grades.views import BUILDS
from pipelines.run_sources import SOURCES
from pipelines.sums import load as additions
from pipelines.sums.sums import create as create_sum
from pipelines.tenants import rushes
from pipelines.weblog.loads import add_sample
from pipelines.weblog.pipeline import WEBLOG
from pipelines.zeitgeist import player
from pipelines.zeitgeist.pipeline import ZEITGEIST
from rollforward.batches.entities import COMPLETED, REMOVED, BatchState, state_key
from rollforward.continuations import job, runs
from rollforward.continuations.entities import ContinuationRun, run_key
from rollforward.continuations.sources import NumberSource
from rollforward.flows import Steps, flow
from rollforward.flows.rows.entities import FlowRun
from rollforward.materialized_views.entities import catalog_keys
from rollforward.operations.run_sources import RunSource
from rollforward.runtime import Clients
from rollforward.tasks.runs import Run, RunDetails, RunLink
from tests.infra.world import Services
from tests.rollforward.batches.harness import TREES, Branch, branch
from tests.rollforward.console.conftest import API, Desk, desk_with
from tests.rollforward.console.test_pages import MAX_READS, Browser, reads_of

HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Nothing:
    pass


@job("listed-job", queue="imports", source=lambda args: NumberSource(2), effect="apply")
def work(clients: Clients, args: Nothing, numbers: Sequence[int]) -> None:
    """Do nothing, two times."""


@flow("listed-flow")
def wait(step: Steps) -> None:
    """Never delivered: its rows are written by the tests."""


class Imported(ndb.Model):
    """A row in which an app keeps runs of its own."""

    started = ndb.DateTimeProperty(required=True)


def newest(clients: Clients, started_before: datetime.datetime | None, limit: int) -> Sequence[Run]:
    query = Imported.query().order(-Imported.started)
    if started_before is not None:
        query = query.filter(Imported.started < started_before.replace(tzinfo=None))
    return [run_of(row) for row in query.fetch(limit)]


def run_of(row: Imported) -> Run:
    started = row.started.replace(tzinfo=datetime.UTC)
    return IMPORTS.run(row.key.id(), "running", started, counts={"done": 1, "waiting": 2})


def details(clients: Clients, own_id: str) -> RunDetails | None:
    row = Imported.get_by_id(own_id)
    return None if row is None else RunDetails(run_of(row), numbers={"rows": 3})


IMPORTS = RunSource("import", newest, details, feeds=RunLink("streams", "weblog"))
BROKEN = RunSource("broken", lambda *_: [{}["no such"]], lambda *_: {}["no such"])


@pytest.fixture
def desk(services: Services) -> Desk:
    """Return the console of an app with runs of each pattern."""
    return desk_with(services, work, wait, TREES, BUILDS, WEBLOG, IMPORTS)


def start(desk: Desk, run_id: str) -> None:
    with desk.world.context():
        runs.start(desk.world.clients, work, Nothing(), run_id=run_id)


def keep(desk: Desk, *rows: Callable[[], ndb.Model]) -> None:
    with desk.world.context():
        ndb.put_multi([row() for row in rows])


def now(desk: Desk) -> datetime.datetime:
    return desk.world.clock.now().replace(tzinfo=None)


def flow_row(desk: Desk, flow_id: str, **fields: object) -> FlowRun:
    values = {"args": "{}", "started_by": "t", "created": now(desk), **fields}
    return FlowRun(id=f"listed-flow|{flow_id}", **values)


def listed(desk: Desk, **query: object) -> dict[str, object]:
    return desk.ask(f"{API}/runs", query_string=query).get_json()


def ids(desk: Desk, **query: object) -> list[str]:
    return [f"{run['pattern']} {run['id']}" for run in listed(desk, **query)["runs"]]  # type: ignore[attr-defined]


def fill(desk: Desk) -> list[str]:
    """Start a run of each pattern, a second apart; return all, the newest first."""
    start(desk, "first")
    desk.world.clock.sleep(1)
    with desk.world.context():
        TREES.populate(desk.world.clients, "second", [(branch, Branch("x", 1))], seal=True)
    desk.world.clock.sleep(1)
    keep(desk, lambda: flow_row(desk, "third"))
    desk.world.clock.sleep(1)
    keep(desk, lambda: Imported(id="fourth", started=now(desk)))
    desk.world.clock.sleep(1)
    return [
        "app import:fourth",
        "flows listed-flow|third",
        "batches trees:second",
        "continuations first",
    ]


def rebuild(desk: Desk) -> tuple[str, str]:
    """Rebuild a view; return its id and that of the build."""
    name, view = next(iter(BUILDS.views.views.items()))
    with desk.world.context():
        table = BUILDS.rebuild(desk.world.clients, view)
    group = BUILDS.views.group
    return f"{group}/{name}", f"{group}/{table}"


def finish(desk: Desk) -> None:
    for _ in range(4):
        desk.world.settle()
        desk.world.sweep()
    desk.world.settle()


def test_each_pattern_s_runs_are_in_one_list_newest_first(desk: Desk) -> None:
    """Also one by one in pages, and each pattern's alone; each has a page of its own."""
    expected = fill(desk)
    paged: list[str] = []
    query: dict[str, object] = {"limit": 1}
    while "before" not in query or query["before"]:
        page = listed(desk, **query)
        paged += [f"{run['pattern']} {run['id']}" for run in page["runs"]]  # type: ignore[attr-defined]
        query["before"] = page["next_before"]

    assert ids(desk) == paged == expected
    for run in expected:
        pattern, _, run_id = run.partition(" ")
        assert ids(desk, pattern=pattern) == [run]
        assert run_id.split(":")[0].split("|")[0] in Browser(desk).read(
            f"/runs/{pattern}/{quote(run_id, safe='')}"
        )
    assert ids(desk, state="running") == expected
    assert ids(desk, state="finished") == ids(desk, state="failed") == []
    assert ids(desk, name="import") == expected[:1]


def test_the_list_reads_no_more_than_a_page_of_many(desk: Desk) -> None:
    """Of each pattern some rows, whatever is stored; the filters of the page as well."""
    for number in range(30):
        start(desk, f"run-{number}")
        keep(desk, partial(flow_row, desk, str(number)))
        keep(desk, partial(Imported, id=str(number), started=now(desk)))
        desk.world.clock.sleep(1)
    desk.world.settle()  # Eight rows more for each job that runs.
    browser = Browser(desk)

    for path in ("/runs", "/runs?pattern=app", "/runs?state=running", "/runs?pattern=flows"):
        assert reads_of(desk, lambda path=path: browser.read(path)) <= MAX_READS, path  # type: ignore[misc]


def test_a_build_is_a_run_with_its_walks(desk: Desk) -> None:
    """Running, then finished; its walks are linked from it and lead back to it."""
    view_id, build = rebuild(desk)
    running = listed(desk, pattern="materialized-views")["runs"]
    finish(desk)
    # Views whose sources are its rows are rebuilt after it.
    name = view_id.partition("/")[2]
    [ended] = listed(desk, pattern="materialized-views", name=name)["runs"]  # type: ignore[misc]
    browser = Browser(desk)
    page = browser.read(f"/runs/materialized-views/{build}")
    walks = re.findall(r'href="/rollforward/runs/continuations/([^"]+)"', page)

    assert [(run["id"], run["state"]) for run in running] == [(build, "running")]  # type: ignore[attr-defined]
    assert (ended["id"], ended["state"], bool(ended["ended"])) == (build, "finished", True)
    assert len(walks) == 3  # Of each step one: it has one kind of sources.
    for walk in walks:
        assert f"runs/materialized-views/{quote(build, safe='')}" in browser.read(
            f"/runs/continuations/{walk}"
        )
    assert f"runs/materialized-views/{quote(build, safe='')}" in browser.read(
        f"/runs/materialized-views/{view_id}"
    )
    assert browser.open(f"/runs/materialized-views/{view_id}.9.9").status_code == 404


def test_a_build_that_is_replaced_is_listed_until_its_table_is_deleted(desk: Desk) -> None:
    """Each rebuild is a run of its own."""
    view_id, first = rebuild(desk)
    finish(desk)
    desk.world.clock.sleep(1)
    _, second = rebuild(desk)
    asked = {"pattern": "materialized-views", "name": view_id.partition("/")[2]}
    while_building = ids(desk, **asked)
    finish(desk)

    assert while_building == [f"materialized-views {second}", f"materialized-views {first}"]
    assert ids(desk, **asked) == [f"materialized-views {second}"]


def test_a_batch_is_shown_in_its_tree(desk: Desk) -> None:
    """From each batch of the tree: those above, itself, those below; the list says of which."""
    with desk.world.context():
        work = [(branch, Branch("x", 2, levels=1))]
        TREES.populate(desk.world.clients, "root", work, seal=True)
    desk.world.settle()
    with desk.world.context():
        rows = BatchState.query().fetch()
    parents = {row.key.id(): row.parent for row in rows}
    deepest = next(batch for batch in parents if parents.get(parents[batch] or "") == "trees:root")
    browser = Browser(desk)

    for batch in ("trees:root", deepest):
        shown = desk.ask(f"{API}/runs/batches/{quote(batch, safe='')}").get_json()["tree"]
        chain = [(one["depth"], one["run"]["id"]) for one in shown]
        assert chain[0] == (0, "trees:root")
        assert [depth for depth, run_id in chain if run_id == deepest] == [2]
        assert 'id="tree"' in browser.read(f"/runs/batches/{quote(batch, safe='')}")
    assert len(desk.ask(f"{API}/runs/batches/trees%3Aroot").get_json()["tree"]) == len(parents)
    by_id = {run["id"]: run for run in listed(desk, limit=50)["runs"]}  # type: ignore[attr-defined]
    assert by_id[deepest]["part_of"] == {"pattern": "batches", "id": parents[deepest]}


def test_what_failed_in_a_nested_batch_is_run_again_by_the_one_above(desk: Desk) -> None:
    """Alone its members would run for nobody: the list offers no such thing, and it is refused."""
    fields = {"state": COMPLETED, "outcome": "failed", "sealed": True, "completed": now(desk)}
    fields |= {"members": 2, "done": 1, "failed": 1}
    rows = {"top": {}, "below": {"parent": "trees:top"}}
    keep(desk, *(partial(batch_row, desk, name, **fields, **more) for name, more in rows.items()))

    verbs = {run["id"]: run["verbs"] for run in listed(desk)["runs"]}  # type: ignore[attr-defined]
    refused = desk.change("/runs/batches/trees%3Abelow:retry")

    assert verbs == {"trees:top": ["retry"], "trees:below": []}
    assert (refused.status_code, "trees:top: tell that" in refused.text) == (409, True)


def test_a_tree_ends_at_a_batch_that_is_being_removed(desk: Desk) -> None:
    """Its page says that there is none: no link of the tree may lead there."""
    rows = {"top": {}, "removed": {"parent": "trees:top", "state": REMOVED}}
    rows |= {"middle": {"parent": "trees:removed"}, "leaf": {"parent": "trees:middle"}}
    keep(desk, *(partial(batch_row, desk, name, **fields) for name, fields in rows.items()))

    tree = desk.ask(f"{API}/runs/batches/trees%3Aleaf").get_json()["tree"]

    assert [one["run"]["id"] for one in tree] == ["trees:middle", "trees:leaf"]


def test_a_wide_tree_is_cut_and_says_so(desk: Desk) -> None:
    """A page reads no more of it."""
    rows = [partial(batch_row, desk, str(number), parent="trees:root") for number in range(40)]
    keep(desk, *rows, lambda: batch_row(desk, "root"))
    browser = Browser(desk)

    reads = reads_of(desk, lambda: browser.read("/runs/batches/trees%3Aroot"))
    tree = desk.ask(f"{API}/runs/batches/trees%3Aroot").get_json()["tree"]

    assert reads <= MAX_READS
    assert tree[0]["left_out"]
    assert len(tree) == 17


def batch_row(desk: Desk, batch_id: str, **fields: object) -> BatchState:
    values = {"policy": "all", "keep_s": 60.0, "created": now(desk), **fields}
    return BatchState(key=state_key(f"trees:{batch_id}"), **values)


def test_batches_that_are_each_other_s_parents_end(desk: Desk) -> None:
    """Nor does a parent that is gone break the page."""
    for batch, parent in (("a", "b"), ("b", "a"), ("c", "gone")):
        keep(desk, partial(batch_row, desk, batch, parent=f"trees:{parent}"))

    for batch in "abc":
        assert 'id="tree"' in Browser(desk).read(f"/runs/batches/trees%3A{batch}")


def test_a_strange_row_hides_no_other(services: Services) -> None:
    """It says that it cannot be read, in the list and on its page; what it needs is missing."""
    desk = desk_with(services, work, wait, TREES, BUILDS, IMPORTS, BROKEN)
    expected = fill(desk)
    strange = {
        "continuations strange": lambda: ContinuationRun(
            key=run_key("strange"), job="gone-job", args="{}", spans=[], page_size=1,
            started=now(desk), totals={"unknown": 1},
        ),
        "flows listed-flow|strange": partial(flow_row, desk, "strange", steps={"a": {"x": "y"}}),
        "flows listed-flow|list": partial(flow_row, desk, "list", steps=[1]),
        "batches trees:strange": partial(batch_row, desk, "strange", members=None),
    }  # fmt: skip
    keep(desk, *strange.values())

    found = ids(desk, limit=50)
    states = {f"{r['pattern']} {r['id']}": r["state"] for r in listed(desk, limit=50)["runs"]}  # type: ignore[attr-defined]
    browser = Browser(desk)
    text = browser.read("/runs")

    assert [run for run in found if run in expected] == expected
    assert set(strange) < set(found)
    assert states["continuations strange"] == states["flows listed-flow|list"] == "unreadable"
    assert (states["app broken:"], states["batches trees:strange"]) == ("unreadable",) * 2
    assert "Cannot be read" in text
    assert "no such" in text
    for run in (*strange, "app broken:x"):
        pattern, _, run_id = run.partition(" ")
        page = browser.open(f"/runs/{pattern}/{quote(run_id, safe='')}")
        assert page.status_code == 200, run


def test_a_strange_catalog_hides_no_run(desk: Desk) -> None:
    """One of a later version of the app: with a view that it lacks, and one of odd tables."""
    expected = fill(desk)
    rebuild(desk)
    odd_tables = ({"live": "odd"}, {"live": 7}, {"live": "odd.1.2", "dropping": None})

    for entry in ({"later": 1}, [], *odd_tables):
        with desk.world.context():
            copies = ndb.get_multi(catalog_keys(BUILDS.views.group))
            for copy in copies:
                names = list(copy.views)
                copy.views = {**copy.views, names[-1]: entry, "unknown": {"live": "u.1.2"}}
            ndb.put_multi(copies)
        assert set(expected) < set(ids(desk)), entry


def test_a_part_leads_to_the_runs_that_feed_it(desk: Desk) -> None:
    """And they lead to it."""
    fill(desk)
    browser = Browser(desk)

    assert "/runs?pattern=app&amp;name=import" in browser.read("/runs/streams/weblog")
    assert "/runs/streams/weblog" in browser.read("/runs/app/import%3Afourth")


@pytest.mark.parametrize("role", ["read", "operate"])
def test_the_demos_loads_and_playbacks_are_runs(services: Services, role: str) -> None:
    """Running, then finished, each with a page."""
    parts = (*SOURCES, WEBLOG, ZEITGEIST, player.play, *rushes.RULES.values(), rushes.flood)
    desk = desk_with(services, *parts, rushes.work, clicks.begin, clicks.click, additions.begin)
    load_id, clients = "a" * 32, desk.world.clients
    started_ms = round(desk.world.clock.now().timestamp() * 1000)
    with desk.world.context():
        clicks.start(clients, clicks.ClickLoad(load_id, ["exact"], 10, 5, started_ms))
        create_sum("clicks")
        additions.start(clients, additions.Load(load_id, "clicks", 10, 2, 5, started_ms))
        form = rushes.RushForm(rushes.IN_LANES, 5, 1, 2, "B", "none", "fast", 0)
        rushes.begin(clients, load_id, form)
        player.start_sample(clients, load_id, 600)
        add_sample(clients, load_id)
    browser = Browser(desk, role)

    running = {run["name"]: run for run in listed(desk, pattern="app")["runs"]}  # type: ignore[attr-defined]
    for run in running.values():
        page = browser.read(f"/runs/app/{quote(run['id'], safe='')}")
        assert run["name"] in page
        assert "Cannot be read" not in page
    desk.world.clock.sleep(60)
    later = {run["name"]: run["state"] for run in listed(desk, pattern="app")["runs"]}  # type: ignore[attr-defined]

    assert running.keys() == {source.name for source in SOURCES}
    assert {run["state"] for run in running.values()} == {"running"}
    assert later["click-load"] == later["sum-load"] == "finished"
    assert browser.open("/runs/app/click-load%3Anothing").status_code == 404
    assert browser.open("/runs/app/nothing%3Ax").status_code == 404
