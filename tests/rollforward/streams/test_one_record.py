"""Files that a reader opens to follow one record: from a push to the commit of its worker.

`python -m tests.rollforward.streams.test_one_record` prints them with their functions.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rollforward import streams
from rollforward.streams import Computation, Context, Pipeline, Record
from rollforward.streams.model.slots import slot_of
from tests.rollforward.streams.simulator.driver import Came, Desk

pytestmark = pytest.mark.fast

PACKAGE = Path(streams.__file__).parent
MAX_PUSHED, MAX_WORKED = 15, 28  # A ratchet: these numbers only fall.


class Tally(Computation):
    """Counts the records of each key."""

    inputs = {"in": lambda value: value["k"]}  # noqa: RUF012

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state["count"] = ctx.state.get("count", 0) + 1


def traced(act: Callable[[], Any]) -> dict[str, set[str]]:
    """Return the functions of the package that run, by file."""
    files: dict[str, set[str]] = defaultdict(set)

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files[str(path.relative_to(PACKAGE))].add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return files


def traces() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the files of a push, and those of the worker that takes its record."""
    desk = Desk(Pipeline("traced", Tally, intervals=1))
    desk.push(Came("0", "b", 1))  # The rows of a first run are made.
    desk.run()
    slot_of.cache_clear()  # Its file counts, whichever keys were hashed before.
    pushed = traced(lambda: desk.push(Came("1", "a", 1_000)))
    worked = traced(lambda: desk.do(desk.worker("tally")))
    assert desk.state("tally", "a") == {"count": 1}
    return pushed, worked


def test_one_record_opens_few_files() -> None:
    """Those of a push, and those of a worker."""
    pushed, worked = traces()

    assert (len(pushed), len(worked)) == (MAX_PUSHED, MAX_WORKED)


if __name__ == "__main__":
    for title, files in zip(("push", "work"), traces(), strict=True):
        print(f"{title}: {len(files)} files, {sum(map(len, files.values()))} functions")  # noqa: T201
        for name, functions in sorted(files.items(), key=lambda item: -len(item[1])):
            print(f"  {name} {len(functions)}")  # noqa: T201
