"""Flows by the command line: a failed one is found, read without a browser, and retried."""

from __future__ import annotations

import re

import pytest

from tests.infra.world import Services
from tests.rollforward.cli.remote.conftest import READER, Shop
from tests.rollforward.console.conftest import Desk, desk_with
from tests.rollforward.console.test_access import FLOW, fail_flow
from tests.rollforward.flows.shop import BANK, mail, order
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = one_emulator


@pytest.fixture
def desk(services: Services) -> Desk:
    """Return an app with a flow that has failed at its charge."""
    BANK.__init__()  # type: ignore[misc]
    desk = desk_with(services, order, mail)
    fail_flow(desk)
    return desk


def test_a_failed_flow_is_found_and_read(shop: Shop) -> None:
    """Among others by its state; its steps are a table with times."""
    [run] = shop.json("runs", "--state", "failed", "--pattern", "flows")["runs"]
    shown = shop.run("runs", "show", "flows", FLOW)

    assert (run["id"], run["state"]) == (FLOW, "failed")
    assert shop.json("runs", "--pattern", "batches") == {"runs": [], "next": None}
    assert "\nStepFailedError: x\n" in shown
    assert re.search(r"^STEP +KIND +STATE +RESULT", shown, re.M)
    assert re.search(r"^reserve +commit +done +1", shown, re.M)


def test_a_flow_is_retried_from_a_step(shop: Shop) -> None:
    """A reader may not; a step that does not exist is refused."""
    refused = shop.run("runs", "retry", "flows", FLOW, "--from", "nothing", code=1)
    shop.token = READER
    shop.run("runs", "retry", "flows", FLOW, "--from", "charge", code=4)
    shop.token = "operator.token"
    retried = shop.run("runs", "retry", "flows", FLOW, "--from", "charge")
    shop.desk.world.settle(patience_s=60)

    assert "no step 'nothing'" in refused
    assert retried == f"Retried flows {FLOW} from charge; look at run {FLOW}.\n"
    assert shop.json("runs", "show", "flows", FLOW)["run"]["counts"]["done"] == 2
    with pytest.raises(SystemExit, match="2"):
        shop.run("runs", "cancel", "flows", FLOW, "--from", "charge")


def test_failed_flows_are_retried_at_once(shop: Shop) -> None:
    """All, those of a name, or by their ids; what is not named is not retried."""
    for arguments in (
        *([], [FLOW, "--all"], [FLOW, "--name", "x"], ["--name", "x"]),
        *(["--from", "charge", "--all"], [FLOW, "b", "--from", "charge"], ["x"] * 101),
    ):
        assert "Name " in shop.run("runs", "retry", "flows", *arguments, code=2), arguments
    shop.token = READER
    shop.run("runs", "retry", "flows", "--all", code=4)
    shop.token = "operator.token"
    shop.desk.world.clock.sleep(1)  # Those that were started before it are retried.
    other = shop.run("runs", "retry", "flows", "--all", "--name", "other", code=5)
    untouched = shop.json("runs", "show", "flows", FLOW)["run"]["state"]
    started = shop.run("runs", "retry", "flows", "--all", "--name", "test-orders")
    shop.desk.world.settle(patience_s=60)

    assert ("no such name" in other, untouched) == (True, "failed")
    assert shop.json("runs", "--pattern", "continuations")["runs"][1:] == []
    assert re.fullmatch(r"Started a run: rollforward runs show continuations \w+\n", started)
    assert shop.json("runs", "show", "flows", FLOW)["run"]["state"] == "running"
