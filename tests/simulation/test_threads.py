"""Actors wait for each other as threads do, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.simulation.processes import Process
from tests.simulation.schedule import SHOPS
from tests.simulation.services.moods import CALM
from tests.simulation.threads import Condition, Event, Lock
from tests.simulation.world import PROCESSES, World


@pytest.fixture
def world() -> Iterator[World]:
    world = World([*SHOPS.values()])
    world.begin("0", [], CALM)
    yield world
    world.end()
    world.engine.close()


def play(world: World, *works: Callable[[], None]) -> None:
    """Let as many actors work at once, and all of them come to their end."""

    def work_on(work: Callable[[], None]) -> Callable[[Process], None]:
        return lambda _: work()

    assert len(works) <= PROCESSES
    for work in works:
        world.at(world.now_s, "test", work_on(work))
    world.run()
    assert world.unfinished() == []


def test_a_lock_is_held_by_one_actor_at_a_time(world: World) -> None:
    lock, held, most = Lock(world), list[int](), list[int]()

    def work() -> None:
        with lock:
            held.append(1)
            most.append(len(held))
            world.sleep(5.0)
            held.pop()

    play(world, work, work, work)
    assert most == [1, 1, 1]


def test_a_lock_that_is_held_is_not_taken_without_patience(world: World) -> None:
    lock, taken, began_s = Lock(world), list[tuple[bool, float]](), world.now_s

    def hold() -> None:
        with lock:
            world.sleep(5.0)

    def try_it() -> None:
        world.sleep(1.0)
        for patience in ({"blocking": False}, {"timeout": 2.0}, {"timeout": 30.0}):
            taken.append((lock.acquire(**patience), world.now_s - began_s))  # type: ignore[arg-type]

    play(world, hold, try_it)
    assert taken == [(False, 1.0), (False, 3.0), (True, 5.0)]


def test_an_event_is_waited_for_until_it_is_set_or_the_time_is_over(world: World) -> None:
    event, woken, began_s = Event(world), list[tuple[bool, float]](), world.now_s

    def wait() -> None:
        woken.append((event.wait(2.0), world.now_s - began_s))
        woken.append((event.wait(), world.now_s - began_s))

    def set_later() -> None:
        world.sleep(4.0)
        event.set()

    play(world, wait, set_later)
    assert woken == [(False, 2.0), (True, 4.0)]


def test_a_condition_wakes_as_many_as_it_is_told_to(world: World) -> None:
    condition, woken = Condition(world), list[float]()
    began_s = world.now_s

    def wait() -> None:
        with condition:
            condition.wait()
            woken.append(world.now_s - began_s)

    def notify() -> None:
        world.sleep(1.0)
        with condition:
            condition.notify()
        world.sleep(1.0)
        with condition:
            condition.notify_all()

    play(world, wait, wait, notify)
    assert woken == [1.0, 2.0]


def test_a_condition_waits_for_what_holds_and_no_longer_than_its_time(world: World) -> None:
    condition, stock, found = Condition(world), list[str](), list[object]()
    began_s = world.now_s

    def wait() -> None:
        with condition:
            found.append(bool(condition.wait_for(lambda: stock, 1.5)))
            found.append(world.now_s - began_s)
            found.append(bool(condition.wait_for(lambda: stock, 60.0)))

    def put() -> None:
        for second in range(3):
            world.sleep(1.0)
            with condition:
                stock.extend(["piece"] * (second == 2))
                condition.notify_all()

    play(world, wait, put)
    assert found == [False, 1.5, True]
