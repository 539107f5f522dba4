"""Lanes by the command line: keys are listed and read, paused, drained and resumed."""

from __future__ import annotations

import re

import pytest

from tests.infra.world import Services
from tests.rollforward.cli.remote.conftest import READER, Shop
from tests.rollforward.console.conftest import Desk, desk_with
from tests.rollforward.lanes.office import DESK, IN_ORDER, send, write
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = one_emulator
LANE, KEY = IN_ORDER.name, "a/b|c é:"


@pytest.fixture
def desk(services: Services) -> Desk:
    """Return an app with three tasks in a key of a lane."""
    DESK.__init__()  # type: ignore[misc]
    desk = desk_with(services, IN_ORDER, write)
    with desk.world.context():
        send(desk.world.clients, IN_ORDER, KEY, *range(3))
    return desk


def test_lanes_keys_and_tasks_are_listed(shop: Shop) -> None:
    """As tables, and as JSON."""
    [lane] = shop.json("lanes")["lanes"]
    [key] = shop.json("lanes", "keys", LANE)["keys"]
    shown = shop.run("lanes", "show", LANE, KEY)

    assert (lane["name"], lane["waiting"], key["key"], key["waiting"]) == (LANE, 3, KEY, 3)
    assert shown.count("/tasks/tests/lane-letter") == 3
    assert re.search(rf"^{LANE} +3 ", shop.run("lanes"), re.M)
    assert shop.json("lanes", "keys", LANE, "--resting") == {"keys": [], "next": None}
    assert "no such lane" in shop.run("lanes", "keys", "nothing", code=5)


def test_a_key_is_paused_drained_and_resumed(shop: Shop) -> None:
    """A reader may not."""
    shop.token = READER
    shop.run("lanes", "drain", LANE, KEY, code=4)
    shop.token = "operator.token"
    paused = shop.run("lanes", "pause", LANE, KEY)
    shop.desk.world.settle()
    resting = shop.run("lanes", "keys", LANE, "--resting")
    drained = shop.run("lanes", "drain", LANE, KEY)
    resumed = shop.run("lanes", "resume", LANE, KEY)
    shop.desk.world.settle()

    assert paused == f"Paused {KEY} of {LANE}.\n"
    assert "paused" in resting
    assert drained == f"Drained {KEY} of {LANE}: 3 deleted, 0 running.\n"
    assert resumed == f"Resumed {KEY} of {LANE}.\n"
    assert DESK.written == []


def test_a_key_that_was_not_meant_is_noticed(shop: Shop) -> None:
    """A key may be any text, so nobody can refuse one: its state before says what was found."""
    unknown = f"{LANE}", "no-such-key"
    told = [shop.run("lanes", verb, *unknown) for verb in ("resume", "pause", "resume")]
    open_key = shop.json("lanes", "resume", LANE, KEY)

    assert told == [
        f"Resumed no-such-key of {LANE}, which has no tasks and was neither paused nor blocked.\n",
        f"Paused no-such-key of {LANE}, which has no tasks.\n",
        f"Resumed no-such-key of {LANE}.\n",
    ]
    assert (open_key["was"], open_key["waiting"]) == ("open", 3)


@pytest.mark.parametrize("key", ["/home/a", "a//b", "..", "a/../b"])
def test_a_key_that_is_like_a_path_is_itself(shop: Shop, key: str) -> None:
    """No client resolves it."""
    with shop.desk.world.context():
        send(shop.desk.world.clients, IN_ORDER, key, 0)

    assert shop.json("lanes", "show", LANE, key)["key"] == key
    assert shop.run("lanes", "drain", LANE, key).startswith(f"Drained {key} of {LANE}: 1 deleted")
