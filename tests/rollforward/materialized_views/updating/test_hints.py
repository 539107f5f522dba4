"""Hints of one fold to the next, in a memcached that is a dictionary, and may say anything."""

from __future__ import annotations

import datetime
import json
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.materialized_views.updating import hints
from rollforward.materialized_views.updating.hints import FoldStart, OwnTasks
from rollforward.outbox.entities import RowId

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  Datastore's are naive.
TABLE = "by_school.3.1"


class Cache:
    """Memcached."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.get = self.values.get

    def set(self, name: str, value: bytes, ttl_s: int) -> None:
        self.values[name] = value


def machine() -> Any:
    return SimpleNamespace(cache=Cache())


def update(number: int, *, after_us: int = 0) -> str:
    """Return the key of an update that was saved so long after noon."""
    saved = NOON + datetime.timedelta(microseconds=after_us)
    return RowId("c0ffee", saved, number, is_unacked=True).text


def test_an_update_has_a_task_if_it_is_as_old_as_the_newest_that_has_one() -> None:
    """C1: one of the same microsecond if it is named; of another row, nothing is known."""
    clients = machine()
    OwnTasks(clients, TABLE).add([("row", update(1, after_us=1)), ("row", update(2, after_us=1))])
    OwnTasks(clients, TABLE).add([("row", update(3))])  # Saved earlier: all is as before.
    tasks = OwnTasks(clients, TABLE)

    named = [update(number, after_us=1) for number in (1, 2, 3)]
    assert [tasks.has("row", id_) for id_ in named] == [True, True, False]
    assert (tasks.has("row", update(9)), tasks.has("row", update(9, after_us=2))) == (True, False)
    assert not tasks.has("other", update(1))
    assert not OwnTasks(clients, "by_city.1.1").has("row", update(1))


def test_the_rows_that_were_added_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: so many of them; one that is added again is a new one."""
    monkeypatch.setattr(hints, "MAX_ROWS", 2)
    clients = machine()
    for row in ("a", "b", "a", "c"):
        OwnTasks(clients, TABLE).add([(row, update(1))])
    tasks = OwnTasks(clients, TABLE)

    assert [row for row in "abc" if tasks.has(row, update(1))] == ["a", "c"]


def test_of_one_microsecond_the_last_updates_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C1: so many of a row, and none of an earlier one beside them."""
    monkeypatch.setattr(hints, "MAX_AT_ONCE", 2)
    clients = machine()
    OwnTasks(clients, TABLE).add([("row", update(number)) for number in range(4)])
    tasks = OwnTasks(clients, TABLE)
    assert [number for number in range(4) if tasks.has("row", update(number))] == [2, 3]

    tasks.add([("row", update(7, after_us=1))])
    stored = json.loads(clients.cache.values[f"views:own-tasks:{TABLE}"])
    assert stored["row"][1] == [update(7, after_us=1)]


@pytest.mark.parametrize(
    "strange",
    [b"", b"{", b"null", b"[1]", b"7", b'{"row": 7}', b'{"row": ["a"]}', b'{"row": ["a", [1]]}',
     b'{"row": [1, []]}', b'{"row": ["a", "b"]}', b'{"row": ["9", [], 1]}', b"\xff",
     b"[" * 100_000, b'"by_school.3.1:\\ud800"', b'"by_school.3.1:%s"' % (b"x" * 1_500),
     b'{"row": ["9", ["\\udfff"]]}', b'{"\\ud800": ["9", []]}'],
    ids=range(17),
)  # fmt: skip
def test_what_memcached_makes_up_is_no_hint(strange: bytes) -> None:
    """C1: a fold takes it for nothing, and begins at the first row."""
    clients = machine()
    for name in ("own-tasks", "place"):
        clients.cache.values[f"views:{name}:{TABLE}"] = strange

    tasks = OwnTasks(clients, TABLE)
    assert not tasks.has("row", update(1))
    assert FoldStart(clients, TABLE).start == ""
    tasks.add([("row", update(1))])
    assert OwnTasks(clients, TABLE).has("row", update(1))


def test_a_fold_begins_behind_the_row_that_the_last_one_passed() -> None:
    """C1: of its own table; nothing is written if none was passed."""
    clients = machine()
    FoldStart(clients, TABLE).store()
    assert clients.cache.values == {}
    place = FoldStart(clients, TABLE)
    place.pass_by(f"{TABLE}:é")
    place.store()

    following = FoldStart(clients, TABLE)
    assert f"{TABLE}:é" < following.start < f"{TABLE}:é "
    clients.cache.values[f"views:place:{TABLE}0"] = clients.cache.values[f"views:place:{TABLE}"]
    assert FoldStart(clients, f"{TABLE}0").start == ""
