"""Saves of a Datastore that is idle."""

import asyncio
import contextlib

import pytest

from rollforward.local.errors import ServiceFailedError
from rollforward.local.saves import autosave
from rollforward.local.saves.autosave import Autosave

pytestmark = pytest.mark.fast


async def run_until(saves, is_done):
    """Run saves until something holds, which on a loaded machine may take seconds."""
    running = asyncio.create_task(saves.run())
    async with asyncio.timeout(30):
        while not is_done():
            await asyncio.sleep(0.001)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


class Idle:
    """A Datastore in which nothing changes."""

    saved = None

    def __init__(self, calls):
        self.calls = calls

    def changed_to(self):
        self.calls.append("changed?")

    def save(self, as_of, *, may_export):
        assert not may_export  # The app is at work.
        self.calls.append(as_of)
        return False


def test_the_save_of_an_idle_datastore_moves_to_a_time_before_it_was_asked(monkeypatch):
    """A change between the two would be lost by a kill, and the tasks that it made would stay."""
    monkeypatch.setattr(autosave, "_LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(autosave, "CONFIRM_EVERY_S", 0.0)
    calls = []

    def tasks_time():
        calls.append("now?")
        return 7.0

    async def run():
        saves = Autosave(Idle(calls), contextlib.nullcontext, tasks_time, print)
        await run_until(saves, lambda: len(calls) >= 6)

    asyncio.run(run())

    assert calls[:6] == ["now?", "changed?", 7.0] * 2


class Failing:
    """A Datastore whose disk is full twice, with an hour in between."""

    saved = None

    def __init__(self, outcomes):
        self.outcomes = iter(outcomes)
        self.is_well = False

    def changed_to(self):
        return None

    def save(self, as_of, *, may_export):
        outcome = next(self.outcomes, "works at last")
        self.is_well = outcome == "works at last"
        if outcome == "fails":
            raise ServiceFailedError("the disk is full")
        return False


def test_each_time_in_which_nothing_can_be_saved_is_told_once(monkeypatch):
    """The second one passed without a word until a change was saved."""
    monkeypatch.setattr(autosave, "_LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(autosave, "CONFIRM_EVERY_S", 0.0)
    told = []

    async def run():
        datastore = Failing(["fails", "fails", "works", "fails", "fails"])
        saves = Autosave(datastore, contextlib.nullcontext, lambda: 7.0, told.append)
        await run_until(saves, lambda: datastore.is_well)

    asyncio.run(run())

    assert told == ["could not be saved, and is tried again: the disk is full"] * 2
