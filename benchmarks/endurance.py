"""Half an hour of load on the whole stack, with a restart and a kill: are all guarantees kept?

    make endurance MINUTES=30

Writers add to a sum (by API and by form) and to a school without pause, while the benchmark
rebuilds the school's view and kills workers. Halfway, Ctrl-C stops the stack, and it restarts: at
the end no accepted write may be missing. Then `kill -9` ends the whole stack under load. Only
writes accepted since the last save may be lost. The remaining data must be consistent: each bar
must match the stored students.
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
LAST_LOAD_S = 2 * SAVE_EVERY_S  # Before the kill of the whole stack.


@dataclass
class Outcome:
    """The result; losses can only come from the kill of the whole stack."""

    minutes: float
    items: int = 0
    students: int = 0
    exact_after_s: float = 0.0
    lost_items: int = 0
    lost_students: int = 0
    oldest_lost_s: float = 0.0  # From its acceptance to the kill.
    agreed_after_s: float = 0.0


def main() -> int:
    """Put the stack under load, and print the outcome."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance")
    parser.add_argument("--minutes", type=float, default=30.0, help="of load")
    minutes = parser.parse_args().minutes
    outcome = Outcome(minutes)
    with running() as stack:
        books = Books(stack, WRITERS)
        books.open()
        _endure(stack, books, 30 * minutes)
        _say("Ctrl-C under load, and restart")
        with books.writing():
            time.sleep(5)
            stack.restart()
            time.sleep(5)
        _endure(stack, books, 30 * minutes)
        outcome.items, outcome.students = books.items, len(books.students)
        outcome.exact_after_s = max(books.until_exact().values())
        _say(f"all {books.items} items and {len(books.students)} students are present")
        _kill(stack, books, outcome)
    print(json.dumps(asdict(outcome)), flush=True)
    return 0


def _endure(stack: Stack, books: Books, seconds: float) -> None:
    """Write for some seconds, with rebuilds and kills."""
    began_at = reported_at = rebuilt_at = killed_at = time.monotonic()
    with books.writing():
        while time.monotonic() - began_at < seconds:
            time.sleep(1)
            now_s = time.monotonic()
            if now_s - rebuilt_at > REBUILD_EVERY_S:
                rebuilt_at = now_s
                form = {"id": f"{int(now_s * 1000):032x}"}
                books.send_form(requests.Session(), "/grades", "/grades/rebuild", form)
            if now_s - killed_at > KILL_EVERY_S:
                killed_at = now_s
                stack.kill_worker()
            if now_s - reported_at > SAY_EVERY_S:
                reported_at = now_s
                _say(
                    f"{now_s - began_at:.0f} s: {books.items} items, {len(books.students)} students"
                )


def _kill(stack: Stack, books: Books, outcome: Outcome) -> None:
    """Kill the whole stack under load, restart it, and check the remaining data.

    Raises:
        AssertionError: the data is inconsistent, or lost a write older than two saves.
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
    remaining = _students(stack).keys()
    lost = [student for student in accepted if student.id not in remaining]
    outcome.lost_students = len(lost)
    outcome.oldest_lost_s = round(
        max((killed_s - student.accepted_s for student in lost), default=0), 1
    )
    outcome.lost_items = books.items - _settled_items(books)
    _say(f"{len(lost)} students and {outcome.lost_items} items had not been saved")
    assert outcome.oldest_lost_s < LAST_LOAD_S, "a saved student is lost"
    assert 0 <= outcome.lost_items <= books.items - items, "a saved item is lost"
    assert len(remaining) >= students, "a saved student is lost"


def _settled_items(books: Books) -> int:
    """Return the number of items in the sum once it has stopped growing."""
    counts = [-2, -1]
    while counts[-2] != counts[-1] or counts[-1] < 0:
        time.sleep(3)
        counts.append(books.totals()[1])
    return counts[-1]


def _by_grade(stack: Stack) -> Counter[int]:
    return Counter(_students(stack).values())


def _students(stack: Stack) -> dict[str, int]:
    """Return the grades of the students stored in Datastore, by id."""
    os.environ["DATASTORE_EMULATOR_HOST"] = stack.where["datastore"]
    client = datastore.Client(stack.where["project"])
    rows = client.query(kind="Student").fetch()
    return {row.key.name.partition(":")[2]: row["grade"] for row in rows}


def _say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
