"""Consistency tokens: what they wait for, and how they travel as text."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.materialized_views import ConsistencyToken, reader
from rollforward.materialized_views.entities import marker_key
from rollforward.materialized_views.updating.freshness import TooLargeTokenError
from rollforward.materialized_views.updating.markers import MAX_LEFT
from rollforward.outbox.entities import OutboxTask
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    Number,
    Numbers,
    Wide,
    number,
    one_emulator,
    played,
    rebuild,
)
from tests.rollforward.materialized_views.student_views import SCHOOL, ByGrade, Pupil, pupil


@dataclass(frozen=True)
class Delivering:
    """A clock that lets the queue deliver at one of its sleeps."""

    world: World
    at: int
    slept: list[float]

    def now(self) -> datetime.datetime:
        return self.world.clock.now()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.world.clock.sleep(seconds)
        if len(self.slept) == self.at:
            task = self.world.engine.due()[0]
            self.world.deliver(task.task_name)


def test_a_token_is_met_when_the_last_of_its_updates_is_applied(here: World) -> None:
    """Before that it is not, and a reader who waits sees it as soon as it is."""
    token = SCHOOL.save(here.clients, pupil("ada", 1, 1, "x"))
    assert not SCHOOL.read(here.clients, ByGrade, at_least=token, timeout_s=0).is_satisfied
    here.deliver(here.engine.due()[0].task_name)
    assert not SCHOOL.wait(here.clients, token, 0)
    slept: list[float] = []
    clients = replace(here.clients, clock=Delivering(here, 2, slept))

    reading = SCHOOL.read(clients, ByGrade, at_least=token, timeout_s=0.3)

    assert reading.is_satisfied
    assert len(slept) == 2
    assert [row.count for row in reading.rows] == [1]


@one_emulator
@pytest.mark.parametrize("who", ["reader", "writer"])
def test_a_token_is_waited_for_until_the_limit(here: World, who: str) -> None:
    """By the clock that is passed in, and no longer."""
    token = SCHOOL.save(here.clients, pupil("ada", 1))
    before = here.clock.time_s

    if who == "reader":
        is_satisfied = SCHOOL.read(
            here.clients, ByGrade, at_least=token, timeout_s=0.3
        ).is_satisfied
    else:
        is_satisfied = SCHOOL.wait(here.clients, token, 0.3)

    assert not is_satisfied
    assert 0.299 < here.clock.time_s - before < 0.3 + 3 * reader.LOOK_AGAIN_S


@one_emulator
def test_an_empty_token_and_one_of_an_unchanged_save_are_met(here: World) -> None:
    """They set nothing going, and nothing is under way."""
    SCHOOL.save(here.clients, pupil("ada", 1))
    here.settle()

    unchanged = SCHOOL.save(here.clients, pupil("ada", 1))

    assert not unchanged.updates
    assert SCHOOL.wait(here.clients, unchanged, 0)
    assert ConsistencyToken.parse(str(ConsistencyToken())) == ConsistencyToken()
    assert SCHOOL.wait(here.clients, ConsistencyToken(), 0)


def test_the_token_of_an_unchanged_save_waits_for_the_changes_before_it(
    services: Services,
) -> None:
    """C1: for those of its source, whichever row they are of, and for no other source's."""
    with played(services, [Wide]) as (world, views):
        other = views.save(world.clients, number("other", None, {"elsewhere": 1}))
        saves = [{"x": 1, "y": 1}, {"x": 2, "y": 1, "z": 1}, {"x": 2, "y": 1}, {"x": 2, "y": 1}]
        tokens = [views.save(world.clients, number("a", None, rows)) for rows in saves]
        unchanged = tokens[-1]
        waiting = {row.key.id(): row for row in OutboxTask.query().fetch()}
        last = [tokens[0].updates, tokens[1].updates, tokens[2].updates]
        of_y = next(row for row in last[0] if waiting[row].tag.endswith('"y"'))
        of_x = next(row for row in last[1] if waiting[row].tag.endswith('"x"'))
        (of_z,) = last[2]

        met = [views.wait(world.clients, unchanged, 0)]
        for row in (of_z, of_x, of_y):
            views.apply(world.clients, views.task.read(waiting[row].body.encode()))
            met.append(views.wait(world.clients, ConsistencyToken.parse(str(unchanged)), 0))

        assert not unchanged.updates
        assert met == [False, False, False, True]
        assert not views.wait(world.clients, other, 0)


@one_emulator
def test_a_source_remembers_the_changes_of_few_rows_that_it_left(services: Services) -> None:
    """Of those it is in, all: its marker does not grow with the rows that it was ever in."""
    with played(services, [Numbers]) as (world, views):
        for n in range(MAX_LEFT + 5):
            views.save(world.clients, number("a", 1, row=n))

        sent = marker_key(ndb.Key(Number, "a")).get().sent

        assert len(sent) == MAX_LEFT + 2  # The one it left now, and the one it is in.
        left = range(4, MAX_LEFT + 4)
        assert {f"numbers.1.1:{n}" for n in (*left, MAX_LEFT + 4)} <= {*sent}


@one_emulator
def test_a_source_forgets_what_it_sent_to_a_table_that_is_gone(world: World) -> None:
    """Nobody waits for it; else each rebuild would push out rows that it left."""
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1))
    world.settle()
    rebuild(world)
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 2))

        marker = marker_key(ndb.Key(Pupil, "ada")).get()
        assert {*marker.sent} == {"by_grade.1.2:1", "by_grade.1.2:2"}
        assert [table for table in marker.contributions if table.startswith("by_grade.")] == [
            "by_grade.1.2"
        ]


@one_emulator
def test_a_token_of_very_many_changes_is_waited_for_and_refused_as_text(here: World) -> None:
    """It is not cut: who waits where it was made waits for all, and no text holds them."""
    one = SCHOOL.save(here.clients, pupil("ada", 1))
    many = ConsistencyToken(one.updates | {HELD.replace("0003", f"{n:04d}") for n in range(2_500)})

    with pytest.raises(TooLargeTokenError, match="2,501 changes, its text at most 1,000"):
        str(many)
    before = SCHOOL.wait(here.clients, many, 0)
    here.settle()

    assert [before, SCHOOL.wait(here.clients, many, 0)] == [False, True]


HELD = "c|20300501T120000000000|h|c0ffee|0003|1a2b3c4d"


def test_a_token_survives_as_text() -> None:
    """Through a redirect and back."""
    token = ConsistencyToken(frozenset([HELD, HELD.replace("0003", "0004")]))

    assert ConsistencyToken.parse(str(token)) == token


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "~",
        HELD + "~",
        HELD.replace("|h|", "|o|"),
        HELD.replace("2030", "20x0"),
        HELD.replace("0003", "three"),
        HELD + "|more",
        "~".join(HELD.replace("0003", f"{n:04d}") for n in range(1001)),
        "\ud800",
        HELD.replace("c0ffee", "\ud800"),
        HELD.replace("c0ffee", "c" * 1_500),
        "views-a|1.2.3|1|1|a",
    ],
    ids=[
        *("word", "separator", "half", "relayed", "time", "number", "parts", "many", "surrogate"),
        *("letter", "length", "epoch"),
    ],
)
def test_a_bad_token_is_refused(text: str) -> None:
    """With a ValueError, which its reader expects, before a service refuses it."""
    with pytest.raises(ValueError, match=r"a token must name (unacked rows, got|at most 1,000)"):
        ConsistencyToken.parse(text)


@dataclass
class PutBack:
    """A clock that each wait puts back by minutes."""

    clock: Any
    waits: int = 0

    def now(self) -> datetime.datetime:
        return self.clock.now() - datetime.timedelta(minutes=5 * self.waits)

    def sleep(self, seconds: float) -> None:
        self.waits += 1
        assert self.waits < 10, "a reader waits for the minutes by which the clock was put back"
        self.clock.sleep(seconds)


@one_emulator
def test_a_reader_waits_no_longer_when_the_clock_is_put_back(here: World) -> None:
    """A page that waits 0.3 s for a token is not held up for minutes."""
    token = SCHOOL.save(here.clients, pupil("ada", 1))
    clients = replace(here.clients, clock=PutBack(here.clients.clock))

    assert not SCHOOL.wait(clients, token, 0.3)
    assert not SCHOOL.read(clients, ByGrade, at_least=token).is_satisfied
