"""A store that cannot be written to is one line in the log, and what ran meanwhile runs again."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.server import dispatcher as dispatching
from rollforward.local.cloudtasks.server.dispatcher import Dispatcher
from rollforward.local.cloudtasks.store.records import Response
from rollforward.local.cloudtasks.store.unwritable import truncate
from tests.rollforward.local.cloudtasks.engines import PLACE, QUEUE, add, ids, make_engine

pytestmark = pytest.mark.fast


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What a handler with the filter writes of the dispatcher's log."""
    written = list[str]()
    handler = logging.StreamHandler(SimpleNamespace(write=written.append, flush=lambda: None))
    handler.addFilter(truncate)
    handler.terminator = ""
    dispatching.log.addHandler(handler)
    yield written
    dispatching.log.removeHandler(handler)


def _raised(error: Exception, text: str, *given: Any) -> None:
    try:
        _raise(error)
    except Exception:
        dispatching.log.exception(text, *given)


def _raise(error: Exception) -> None:
    raise error


def test_a_full_disk_is_a_line_that_says_what_to_do(lines: list[str]) -> None:
    _raised(sqlite3.OperationalError("database or disk is full"), "Call failed: %s", "CreateTask")

    assert lines == [
        "Call failed: CreateTask: database or disk is full. Nothing accepted is lost: make room on "
        "the disk of the store, and the queue goes on"
    ]


def test_another_error_keeps_its_traceback(lines: list[str]) -> None:
    """It is a fault of ours."""
    _raised(KeyError("queue"), "Call failed: %s", "CreateTask")

    assert lines[0].startswith("Call failed: CreateTask\nTraceback (most recent call last):")
    assert lines[0].endswith("KeyError: 'queue'")


def test_an_attempt_whose_end_is_not_stored_is_sent_again(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher goes on, and the log has one line."""
    engine = make_engine(tmp_path / "tasks.sqlite3")
    engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    add(engine, "before")
    (attempt,) = engine.begin_ready()
    commit = engine._state.store.commit

    def fail() -> None:
        engine._state.store._db._connection.execute("ROLLBACK")
        engine._state.store._db._is_open = False
        raise sqlite3.OperationalError("disk I/O error")

    async def end() -> None:
        dispatcher = Dispatcher(engine, SimpleNamespace())  # type: ignore[arg-type]
        dispatcher._ended.append((attempt, Response(status=200)))
        dispatcher._end_all()

    monkeypatch.setattr(engine._state.store, "commit", fail)
    asyncio.run(end())
    monkeypatch.setattr(engine._state.store, "commit", commit)

    assert ids(engine.begin_ready()) == ["before"]
    assert len(lines) == 1
    assert lines[0].startswith("1 ended attempts were not stored, and are sent again: disk")
    engine.close()
