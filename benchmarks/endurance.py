"""Half an hour of load on the whole stack, stopped in both ways; were any promises broken?

    make endurance MINUTES=30

Writers add to a sum (by API and by form) and to a school without pause, while its view is built
anew and workers are killed. In the middle Ctrl-C stops the stack, and it starts again: nothing that
was accepted may be missing in the end. Then `kill -9` takes the whole stack under load. What is
lost is what was accepted since the last save; nothing older may be, and what is left must agree
with itself: each bar with the students that there are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass

import requests
from google.cloud import datastore

from benchmarks.harness.books import Books, Writers, until
from benchmarks.harness.dev_server import Stack, running
from rollforward.local.saves.autosave import SAVE_EVERY_S

WRITERS = Writers(amounts=10, forms=2, students=6, pause_s=0.1)
REBUILD_EVERY_S, KILL_EVERY_S = 60.0, 90.0
SAY_EVERY_S = 30.0
PATIENCE_S = 120.0
LAST_LOAD_S = 2 * SAVE_EVERY_S  # Before the whole stack is killed.


@dataclass
class Outcome:
    """The result. Losses are of the killed stack; there are none before."""

    minutes: float
    items: int = 0
    students: int = 0
    exact_after_s: float = 0.0
    lost_items: int = 0
    lost_students: int = 0
    oldest_lost_s: float = 0.0  # How long before the kill it was accepted.
    agreed_after_s: float = 0.0


def main() -> int:
    """Put the stack under load; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance")
    parser.add_argument("--minutes", type=float, default=30.0, help="of load")
    minutes = parser.parse_args().minutes
    outcome = Outcome(minutes)
    with running() as stack:
        books = Books(stack, WRITERS)
        books.open()
        _endure(stack, books, 30 * minutes)
        _say("Ctrl-C under load, and start again")
        with books.writing():
            time.sleep(5)
            stack.restart()
            time.sleep(5)
        _endure(stack, books, 30 * minutes)
        outcome.items, outcome.students = books.items, len(books.students)
        outcome.exact_after_s = max(books.until_exact().values())
        _say(f"all {books.items} items and {len(books.students)} students are there")
        _kill(stack, books, outcome)
    print(json.dumps(asdict(outcome)), flush=True)
    return 0


def _endure(stack: Stack, books: Books, seconds: float) -> None:
    """Write for a while, with rebuilds and kills."""
    began = said = rebuilt = killed = time.monotonic()
    with books.writing():
        while time.monotonic() - began < seconds:
            time.sleep(1)
            now = time.monotonic()
            if now - rebuilt > REBUILD_EVERY_S:
                rebuilt = now
                form = {"id": f"{int(now * 1000):032x}"}
                books.send_form(requests.Session(), "/grades", "/grades/rebuild", form)
            if now - killed > KILL_EVERY_S:
                killed = now
                stack.kill_worker()
            if now - said > SAY_EVERY_S:
                said = now
                _say(f"{now - began:.0f} s: {books.items} items, {len(books.students)} students")


def _kill(stack: Stack, books: Books, outcome: Outcome) -> None:
    """Kill the whole stack under load, start it again, and look at what is left.

    Raises:
        AssertionError: it does not agree with itself, or lost what was older than two saves.
    """
    items, students = books.items, len(books.students)
    with books.writing():
        time.sleep(LAST_LOAD_S)
        accepted = list(books.students)
        killed_s = time.time()
        _say("kill -9 of the whole stack under load")
        stack.kill()
        stack.start()
        time.sleep(5)
    began = time.monotonic()
    until(lambda: books.bars() == _by_grade(stack), "bars and students disagree", PATIENCE_S)
    outcome.agreed_after_s = round(time.monotonic() - began, 1)
    left = _students(stack).keys()
    lost = [student for student in accepted if student.id not in left]
    outcome.lost_students = len(lost)
    outcome.oldest_lost_s = round(max((killed_s - each.accepted_s for each in lost), default=0), 1)
    outcome.lost_items = books.items - _settled_items(books)
    _say(f"{len(lost)} students and {outcome.lost_items} items were not saved yet")
    assert outcome.oldest_lost_s < LAST_LOAD_S, "a student is lost who was saved"
    assert 0 <= outcome.lost_items <= books.items - items, "an item is lost that was saved"
    assert len(left) >= students, "a student is lost who was saved"


def _settled_items(books: Books) -> int:
    """Return how many items the sum has when it does not grow any more."""
    counts = [-2, -1]
    while counts[-2] != counts[-1] or counts[-1] < 0:
        time.sleep(3)
        counts.append(books.totals()[1])
    return counts[-1]


def _by_grade(stack: Stack) -> Counter[int]:
    return Counter(_students(stack).values())


def _students(stack: Stack) -> dict[str, int]:
    """Return the grade of each student that Datastore holds, by id."""
    os.environ["DATASTORE_EMULATOR_HOST"] = stack.where["datastore"]
    client = datastore.Client(stack.where["project"])
    rows = client.query(kind="Student").fetch()
    return {row.key.name.partition(":")[2]: row["grade"] for row in rows}


def _say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
