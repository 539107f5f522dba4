"""Failed flows retried in bulk: each once, whatever breaks, is doubled or dies on the way."""

from __future__ import annotations

import pytest

from rollforward.flows import Steps, flow
from rollforward.flows.rows.entities import FAILED, SUCCEEDED, FlowRun, run_key
from rollforward.operations.failed_runs import JOB, start_failed_runs
from rollforward.runtime.clock import naive_utc
from rollforward.testing.injection import ERROR, FLUSH, KINDS, OVERLAP
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services
from tests.rollforward.console.conftest import Desk, desk_with

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

# The wake of a flow is a hint, and so is a page's next one: the second sweep finds both.
MOST_SWEEPS = dict.fromkeys((*KINDS, ERROR, OVERLAP, FLUSH), 2)


@flow("test-bulk")
def mended(step: Steps) -> str:
    """Do what had failed."""
    return step.outside("call", lambda: "done")


@pytest.fixture
def desk(services: Services) -> Desk:
    """A desk whose app has a flow."""
    return desk_with(services, mended)


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
