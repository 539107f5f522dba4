"""Pings by the command line: each queue's task arrives, or the text says why not."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rollforward.cli import main
from rollforward.cli.commands import ping
from rollforward.operations import pings
from rollforward.operations.sweeps import note_sweeps
from rollforward.runtime.messages import Message
from tests.infra.world import Services
from tests.rollforward.cli.remote.conftest import READER, Shop
from tests.rollforward.console.conftest import Desk, desk_with
from tests.rollforward.lanes.office import IN_ORDER, write
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = one_emulator


@pytest.fixture
def desk(services: Services) -> Desk:
    """Return an app."""
    return desk_with(services, IN_ORDER, write)


@pytest.fixture
def settling(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the queues deliver while the command waits."""
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: desk.world.settle())
    monkeypatch.setattr(ping, "time", clock)


def queues_of(desk: Desk) -> list[str]:
    return sorted({task.queue for task in desk.world.registry.tasks.values()})


@pytest.mark.usefixtures("settling")
def test_a_task_arrives_through_each_queue(shop: Shop) -> None:
    """Its time and the last sweep are shown."""
    with shop.desk.world.context():
        note_sweeps(shop.desk.world.clients, ["outbox"])

    shown = shop.run("ping")
    answer = shop.json("ping")

    for queue in queues_of(shop.desk):
        assert re.search(rf"^{queue} +running +\d+\.\d s$", shown, re.M)
    assert re.search(r"^Last sweep: \d{4}-", shown, re.M)
    assert [row["queue"] for row in answer["queues"]] == queues_of(shop.desk)
    assert {row["error"] for row in answer["queues"]} == {None}
    assert all(row["delivered_after_s"] >= 0 for row in answer["queues"])
    assert answer["last_sweep"] is not None


def test_a_task_that_does_not_arrive_is_named(shop: Shop) -> None:
    """The exit code is 1, and the text says where to look."""
    main(["ping", "--url", shop.url, "--token", shop.token, "--timeout", "1"])
    late = shop.capsys.readouterr().out
    code = main(["ping", "--url", shop.url, "--token", shop.token, "--timeout", "1", "--json"])
    answer = json.loads(shop.capsys.readouterr().out)

    assert re.search(r"^default +running +not delivered$", late, re.M)
    assert "refused POST '/tasks/operations/ping'" in late
    assert "rollforward tasks --queue default" in late
    assert "No sweep is known" in late
    assert code == 1
    assert {row["delivered_after_s"] for row in answer["queues"]} == {None}


def test_a_paused_queue_is_told_from_a_late_one(shop: Shop) -> None:
    """The command that resumes it is printed."""
    shop.desk.change("/queues/default:pause")
    try:
        code = main(["ping", "--url", shop.url, "--token", shop.token, "--timeout", "1"])
        shown = shop.capsys.readouterr().out
    finally:
        shop.desk.change("/queues/default:resume")

    assert code == 1
    assert re.search(r"^default +paused +not delivered$", shown, re.M)
    assert "default: it is paused. Resume it: gcloud tasks queues resume default" in shown


@pytest.mark.usefixtures("settling")
def test_a_queue_that_does_not_exist_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are waited for."""

    def sent_elsewhere(message: Message, queue: str) -> Message:
        return replace(message, queue="absent" if queue == "default" else queue)

    monkeypatch.setattr(pings, "replace", sent_elsewhere)

    code = main(["ping", "--url", shop.url, "--token", shop.token])
    shown = shop.capsys.readouterr().out

    assert code == 1
    assert re.search(r"^default: UnknownQueueError: 'absent' is not in queue.yaml", shown, re.M)


def test_a_reader_sends_none(shop: Shop) -> None:
    """A task is a change."""
    shop.token = READER
    shop.run("ping", code=4)


@pytest.mark.parametrize("timeout", ["0", "601", "nan", "soon"])
def test_a_time_that_nobody_waits_is_refused(shop: Shop, timeout: str) -> None:
    """By argparse."""
    with pytest.raises(SystemExit, match="2"):
        main(["ping", "--url", shop.url, "--timeout", timeout])
