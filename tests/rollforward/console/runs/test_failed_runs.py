"""Failed flows retried in bulk: by a page, by the API, and each once whatever breaks."""

from __future__ import annotations

import re

import pytest

from rollforward.flows import Steps, flow
from rollforward.flows.rows.entities import FAILED, SUCCEEDED, FlowRun, run_key
from rollforward.operations import list_audit
from rollforward.operations.failed_runs import JOB, start_failed_runs
from rollforward.runtime.clock import naive_utc
from rollforward.testing.injection import ERROR, FLUSH, KINDS, OVERLAP
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services
from tests.rollforward.console.conftest import Desk, desk_with
from tests.rollforward.console.runs.test_flows import (
    A1,
    fail,
    long,
    row_of,
    settle,
    start,
    state_of,
    taken,
    write,
)
from tests.rollforward.console.test_pages import ROOT, Browser
from tests.rollforward.flows.shop import BANK, mail, order

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

# The wake of a flow is a hint, and so is a page's next one: the second sweep finds both.
MOST_SWEEPS = dict.fromkeys((*KINDS, ERROR, OVERLAP, FLUSH), 2)


@flow("test-bulk")
def mended(step: Steps) -> str:
    """Do what had failed."""
    return step.outside("call", lambda: "done")


@pytest.fixture
def desk(services: Services) -> Desk:
    """Return the console of an app with some flows."""
    BANK.__init__()  # type: ignore[misc]
    return desk_with(services, order, mail, long, mended)


def test_all_failed_flows_are_retried_by_a_page_that_asks(desk: Desk) -> None:
    """Those of the list; its run is watched, and a form sent twice is one run."""
    fail(desk)
    fail(desk, "A2")
    start(desk, "fine")
    browser = Browser(desk)
    [confirm] = re.findall(r'href="([^"]*retry-all[^"]*)"', browser.read("/runs?state=failed"))
    assert "retry-all" not in browser.read("/runs")
    page = browser.read(confirm.replace("&amp;", "&"))
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))

    forged = browser.client.post(
        f"{ROOT}/runs/retry-all", data={**fields, "csrf_token": "x"}, headers=browser.headers
    )
    answers = [
        browser.client.post(f"{ROOT}/runs/retry-all", data=fields, headers=browser.headers)
        for _ in "ab"
    ]
    settle(desk)

    assert "Retry 2 failed flows?" in page
    assert "the bank is &lt;closed&gt;" in page
    assert [answer.status_code for answer in (forged, *answers)] == [403, 303, 303]
    assert answers[0].headers["Location"] == answers[1].headers["Location"]
    assert "each once" in browser.read(answers[0].headers["Location"])
    assert [state_of(desk, name).steps["charge"].state for name in ("A1", "A2")] == ["done"] * 2
    assert "None has failed" in browser.read(confirm.replace("&amp;", "&"))
    with desk.world.context():
        actions = [entry.action for entry in list_audit(limit=5)[0]]
    assert actions.count("retry failed runs") == 2


def test_failed_flows_are_retried_by_the_api(desk: Desk) -> None:
    """By their ids or by their name; a bad request changes nothing."""
    fail(desk)
    write(desk, 1, state="failed", failure="x")
    path = "/runs/flows:retry"
    bad = [
        desk.change(path, body).status_code
        for body in (
            *({}, {"ids": []}, {"ids": ["x"], "all": True}, {"ids": ["x"], "name": "n"}),
            *({"name": "n"}, {"ids": [""]}, {"ids": ["x"] * 101}, {"all": True, "from": "x"}),
        )
    ]
    unknown = [
        desk.change(f"/runs/{pattern}:retry", {"all": True}).status_code
        for pattern in ("continuations", "nothing")
    ]
    before = row_of(desk)
    other = desk.change(path, {"all": True, "name": "other"})
    settle(desk)
    untouched = row_of(desk)
    key = {"Idempotency-Key": "k"}
    ids = ["test-orders|A1", "test-orders|none", "test-orders|none"]
    by_ids = [desk.change(path, {"ids": ids}, headers=key).json for _ in "ab"]
    settle(desk)

    assert (bad, unknown) == ([400] * 8, [404] * 2)
    assert (other.status_code, untouched) == (404, before)
    assert by_ids[0] == by_ids[1]
    assert state_of(desk).steps["charge"].state == "done"
    assert taken(desk) == 1
    with desk.world.context():
        details = desk.world.registry.run(
            desk.world.clients, "continuations", by_ids[0]["run"]["id"]
        )
        assert run_key("test-long|000").get().state == "failed"
    assert (details.run.counts["done"], details.run.state) == (1, "finished")


def test_a_retry_by_the_api_is_made_once_for_its_key(desk: Desk) -> None:
    """Another key is another retry."""
    fail(desk)
    keys = [{"Idempotency-Key": key} for key in ("k", "k", "l")]

    answers = [desk.change(f"{A1}:retry", headers=key).status_code for key in keys]
    outdated = desk.change(f"{A1}:retry", {"runs": 1})

    assert answers == [200, 200, 409]
    assert "was retried meanwhile" in outdated.text
    assert row_of(desk)["generation"] == 2


class FailedRunsScenario:
    """Let flows fail, ask for the retry of all, and see each run once more."""

    COUNT = 3
    leaves = ("OutboxLease",)

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tags: set[str] = set()

    def begin(self, tag: str) -> None:
        world = self.desk.world
        if tag not in self.tags:
            with world.plan.unwatched():
                for number in range(self.COUNT):
                    self._fail(f"{tag}-{number}")
            self.tags.add(tag)
        world.clock.sleep(0.01)  # A retry in bulk takes those that were started before it.
        job = world.registry.jobs[JOB]
        start_failed_runs(world.clients, job, "flows", run_id=f"r-{tag}")

    def _fail(self, flow_id: str) -> None:
        now_utc = naive_utc(self.desk.world.clock.now())
        row = FlowRun(key=run_key(f"test-bulk|{flow_id}"), args="{}", started_by="test")
        row.populate(state=FAILED, failure="x", created=now_utc, failed=now_utc)
        row.put()

    def is_done(self, tag: str) -> bool:
        return all(row.state == SUCCEEDED for row in self._rows(tag))

    def check(self, tag: str, fault: str) -> None:
        assert [row.generation for row in self._rows(tag)] == [2] * self.COUNT, fault

    def _rows(self, tag: str) -> list[FlowRun]:
        keys = [run_key(f"test-bulk|{tag}-{number}") for number in range(self.COUNT)]
        return [key.get() for key in keys]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bulk_retry_works_with_a_fault_at_any_call(desk: Desk, kind: str) -> None:
    """None is left, none is retried twice."""
    Explorer(desk.world, FailedRunsScenario(desk), MOST_SWEEPS).explore([kind])
