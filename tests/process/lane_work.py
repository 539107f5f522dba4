"""Work in lanes that killed processes and two versions share, and what became of it.

A task writes a line into a file when it begins, with the number of tasks of its key that are at
work then, and another one when it ends. While it is at work it holds the lock of a file, which the
kernel releases when its process dies. Its effect is guarded: a repetition changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Flask
from google.cloud import ndb

from rollforward import flask as endpoints
from rollforward import outbox
from rollforward.datastore import transact
from rollforward.flask.context import clients
from rollforward.lanes import Call, Gathered, Lane, Rate
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.registry import Registry
from rollforward.tasks import Task, task
from rollforward.tasks.dead_task_entities import open_dead_tasks

FILES = "LANE_FILES"  # The folder of what happened.
PLACES = 8  # More than any limit.
WORK_S = 0.04


class LaneJobsAdded(ndb.Model):
    """The receipt of a request that has added jobs."""


class LaneJobDone(ndb.Model):
    """The receipt of a job, or of a window."""


class LaneJobSum(ndb.Model):
    """How many jobs of a key have been done."""

    done = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Piece:
    """The arguments of a call that is gathered."""

    number: int


@task("/tasks/tests/lane-job", queue="default")
def job(lane: str, key: str, number: int) -> None:
    """Do a job."""
    do(lane, key, f"{number:06}", [number])


@task("/tasks/tests/lane-quick-job", queue="default")
def quick_job(lane: str, key: str, number: int) -> None:
    """Do a job that takes about a millisecond: its only effect is in the log."""
    with at_work(f"{lane}-{key}") as many:
        note(lane, key, f"{number:06}", [number], many)
        note(lane, key, f"{number:06}", [number], 0)


def run_window(lane: str, key: str, calls: Sequence[Call[Any]]) -> None:
    """Do the jobs of a window at once."""
    do(lane, key, calls[0].id, [call.args.number for call in calls])


def do(lane: str, key: str, name: str, numbers: Sequence[int]) -> None:
    """Do jobs by one commit, if they are not done yet."""
    with at_work(f"{lane}-{key}") as many:
        note(lane, key, name, numbers, many)
        time.sleep(WORK_S)
        transact(lambda: _count(f"{lane}|{key}", name, len(numbers)))
        note(lane, key, name, numbers, 0)


def _count(key: str, name: str, many: int) -> None:
    if LaneJobDone.get_by_id(f"{key}|{name}") is None:
        LaneJobDone(id=f"{key}|{name}").put()
        row = LaneJobSum.get_by_id(key) or LaneJobSum(id=key)
        row.done += many
        row.put()


@contextlib.contextmanager
def at_work(key: str) -> Iterator[int]:
    """Hold one of the places of a key meanwhile; yield how many are held, this one included."""
    door = _lock(f"{key}.door", 0)
    assert door is not None
    try:
        places = [_lock(f"{key}.{number}", fcntl.LOCK_NB) for number in range(PLACES)]
        mine, *others = [place for place in places if place is not None]
        for place in others:
            os.close(place)
    finally:
        os.close(door)
    try:
        yield PLACES - len(others)
    finally:
        os.close(mine)


def _lock(name: str, flags: int) -> int | None:
    file = os.open(Path(os.environ[FILES]) / name, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def note(lane: str, key: str, name: str, numbers: Sequence[int], many: int) -> None:
    """Write a line, by one call: it is there, or it is not."""
    line = json.dumps([lane, key, name, list(numbers), many, time.time(), os.getpid()])
    file = os.open(Path(os.environ[FILES]) / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def serve(lanes: Sequence[Lane], *tasks: Task[Any], **options: Any) -> Flask:
    """Return an app with these lanes, and a route that adds jobs to a key of one.

    Args:
        tasks: The jobs; the first one is what the route adds.
        options: `piece`: what it adds to a lane that gathers; `quick`: a lane of the last job.
    """
    app = Flask(__name__)
    by_name = {lane.name: lane for lane in lanes}
    piece = options.get("piece", Piece)

    @app.get("/add/<lane>/<key>/<int:first>/<int:end>")
    def add(lane: str, key: str, first: int, end: int) -> str:
        if lane not in by_name:  # Only the other version knows it.
            return "unknown"

        def body() -> None:
            if LaneJobsAdded.get_by_id(f"{lane}|{key}|{first}") is None:
                LaneJobsAdded(id=f"{lane}|{key}|{first}").put()
                for number in range(first, end):
                    one = tasks[-1] if lane == options.get("quick") else tasks[0]
                    _add(by_name[lane], key, number, one, piece)

        transact(body)
        return "added"

    return endpoints.serve(app, Registry(*lanes, *tasks))


def _add(lane: Lane, key: str, number: int, one: Task[Any], piece: Callable[[int], object]) -> None:
    if isinstance(lane, Gathered):
        lane.call(clients(), key, piece(number))
    else:
        outbox.enqueue(clients(), one, one.bind(lane.name, key, number), lane=lane(key))


# What became of it


@dataclass(frozen=True)
class Begin:
    """A job, or a window of them, that began; `at_work` are those of its key, it included."""

    key: tuple[str, str]
    name: str
    numbers: tuple[int, ...]
    at_work: int
    at_s: float
    pid: int


@dataclass(frozen=True)
class Log:
    """What the processes have written: all begins in their order, and how many jobs were cut."""

    begins: Sequence[Begin]
    cut_off: int
    ended: Collection[tuple[tuple[str, str], str]] = ()

    @classmethod
    def of(cls, folder: Path) -> Log:
        """Read the log of a folder."""
        begins, ends, ended = [], 0, set()
        for line in (folder / "log").read_text().splitlines():
            lane, key, name, numbers, many, at_s, pid = json.loads(line)
            if many:
                begins.append(Begin((lane, key), name, tuple(numbers), many, at_s, pid))
            else:
                ended.add(((lane, key), name))
            ends += not many
        return cls(begins, len(begins) - ends, ended)

    def not_ended(self) -> list[Begin]:
        """Return the begins of jobs that nobody has ended."""
        return [begin for begin in self.begins if (begin.key, begin.name) not in self.ended]

    def of_key(self, lane: str, key: str) -> list[Begin]:
        return [begin for begin in self.begins if begin.key == (lane, key)]

    def repeats(self) -> int:
        """Return the most begins of one job, less one."""
        return max(Counter((begin.key, begin.name) for begin in self.begins).values()) - 1


def assert_done_once(added: Mapping[tuple[str, str], int]) -> None:
    """Each job has had its effect once, whatever was repeated; no row and no dead task is left."""
    done = {row.key.id(): row.done for row in LaneJobSum.query().fetch()}
    assert done == {f"{lane}|{key}": many for (lane, key), many in added.items()}
    assert open_dead_tasks().fetch(1) == []
    assert LaneTask.query().fetch(1) == []
    assert [state for state in LaneState.query().fetch() if state.claims] == []


def assert_in_order(begins: Sequence[Begin]) -> None:
    """A job began when all before it had ended; only one that was cut off began once more."""
    numbers = [begin.numbers[0] for begin in begins]
    assert numbers == sorted(numbers)
    assert {begin.at_work for begin in begins} == {1}


def assert_first_begins_in_order(begins: Sequence[Begin], many: int) -> None:
    """No job began before all before it had begun: those after a death may repeat some of them."""
    assert list(dict.fromkeys(begin.numbers[0] for begin in begins)) == list(range(many))


def assert_paced(begins: Sequence[Begin], rate: Rate, added_s: float) -> None:
    """No more jobs have begun at any moment than the rate allows since the first was added."""
    for number, begin in enumerate(begins, 1):
        assert begin.at_s - added_s >= (number - rate.most_at_once) * rate.interval_ms / 1000


def assert_in_windows(begins: Sequence[Begin], many: int) -> None:
    """Each call is in one window, in the order of commits; a window has the same calls always."""
    windows: dict[str, set[tuple[int, ...]]] = {}
    for begin in begins:
        windows.setdefault(begin.name, set()).add(begin.numbers)
    assert [len(numbers) for numbers in windows.values() if len(numbers) > 1] == []
    assert [number for [numbers] in windows.values() for number in numbers] == [*range(many)]
    assert {begin.at_work for begin in begins} == {1}
