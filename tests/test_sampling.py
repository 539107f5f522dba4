"""What `make test` draws: something of each test on each day, and all of it within some days."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.infra.runs import sampling

EMULATORS = ("datastore", "firestore")
DAYS = range(300, 300 + sampling.LOCKING_OF)
ROUND = range(300, 300 + sampling.SLOW_OF)
SLOW = frozenset(f"tests/test_some.py::test_slow_{n}" for n in range(8))


def item(function: str, **parameters: str) -> Any:
    """Return what pytest collects of a test."""
    return SimpleNamespace(
        nodeid=f"tests/test_some.py::{function}[{'-'.join(parameters.values())}]",
        callspec=SimpleNamespace(params=parameters),
        get_closest_marker=lambda name: None,
        config=SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: None)),
    )


def collected() -> list[Any]:
    """Return tests of each kind: one that needs the locks, others on both emulators, a page."""
    return [
        *(item(f"test_{n}", services=kind) for n in range(30) for kind in EMULATORS),
        *(item("test_many", services="datastore", fault=str(n)) for n in range(11)),
        item("test_of_locks", services="firestore"),
        *(item("test_a_page", window=window) for window in ("desktop", "phone")),
        *(item("test_words", word=str(n)) for n in range(9)),
    ]


def slow_ones() -> list[Any]:
    """Return tests that take seconds: some on both emulators, some with a parameter."""
    on_both = (item(f"test_slow_{n}", services=kind) for n in range(4) for kind in EMULATORS)
    return [*on_both, *(item(f"test_slow_{n}", word=word) for n in range(4, 8) for word in "ab")]


def drawn(day: int, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return what is drawn on a day."""
    monkeypatch.setattr(sampling, "SEED", day)
    monkeypatch.setattr(sampling, "SLOW", SLOW)
    items = collected() + slow_ones()
    sampling.draw(items)
    return {each.nodeid for each in items}


def test_no_test_is_left_out_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not one that runs on the emulator that locks alone: nothing else proves its claim."""
    functions = {each.nodeid.partition("[")[0] for each in collected()}

    for day in DAYS:
        assert {id_.partition("[")[0] for id_ in drawn(day, monkeypatch)} - SLOW == functions


def test_what_takes_seconds_is_drawn_once_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """About as many each day, and others on the first day of the next round."""

    def slow_ones_of(day: int) -> set[str]:
        ids = {id_ for id_ in drawn(day, monkeypatch) if "firestore" not in id_}
        return {id_.partition("[")[0] for id_ in ids} & SLOW

    days = [slow_ones_of(day) for day in ROUND]
    assert set().union(*days) == SLOW
    assert {len(day) for day in days} == {math.ceil(len(SLOW) / sampling.SLOW_OF)}
    assert slow_ones_of(ROUND.stop) != days[0]


def test_within_some_days_everything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one day leaves out comes on another; and what a day draws, it draws again."""
    days = range(DAYS[0], DAYS[0] + sampling.SLOW_OF * len(DAYS))
    found = {day: drawn(day, monkeypatch) for day in days}

    everything = {each.nodeid for each in collected() + slow_ones()}
    assert set().union(*found.values()) == everything
    assert len(set(map(frozenset, found.values()))) > 1
    assert drawn(DAYS[0], monkeypatch) == found[DAYS[0]]
    assert len(found[DAYS[0]]) < len(everything)


def test_a_seed_has_an_order_of_its_own_in_which_files_stay_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And draws the same tests in any order. Tests in a browser keep theirs."""
    before = [item(f"test_{n}") for n in range(9)]
    browser = [SimpleNamespace(nodeid=f"tests/browser/test_{n}.py::test") for n in range(9)]
    other = [SimpleNamespace(nodeid=f"tests/test_other.py::test_{n}") for n in range(9)]

    def order_of(day: int) -> list[str]:
        monkeypatch.setattr(sampling, "SEED", day)
        items = [*browser, *before, *other]
        sampling.shuffle(items)
        return [one.nodeid for one in items]

    assert order_of(1) == order_of(1) != order_of(2)
    assert sorted(order_of(1)) == sorted(one.nodeid for one in [*browser, *before, *other])
    files = [id_.partition("::")[0] for id_ in order_of(1) if "browser" not in id_]
    assert files.count(files[0]) == files[:9].count(files[0]) == 9
    assert [id_ for id_ in order_of(1) if "browser" in id_] == [one.nodeid for one in browser]

    expected = drawn(3, monkeypatch)
    items = collected() + slow_ones()
    sampling.shuffle(items)
    sampling.draw(items)
    assert {one.nodeid for one in items} == expected
