"""Two versions of the code at once: what the old one does not know, it does not erase."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.datastore.versions import commit_if_current, read_versions
from tests.infra.world import World

pytestmark = pytest.mark.fast

KIND = "TwoVersions"
LONG = "x" * 2_000  # Longer than an indexed text may be.


class Part(ndb.Model):
    """A part of an entity of the next version."""

    name = ndb.StringProperty()


class Old(ndb.Model):
    """The entity as this version knows it."""

    count = ndb.IntegerProperty(default=0)

    @classmethod
    def _get_kind(cls) -> str:
        return KIND


class New(ndb.Model):
    """The entity as the next version knows it."""

    count = ndb.IntegerProperty(default=0)
    name = ndb.StringProperty()
    long = ndb.TextProperty()
    flag = ndb.BooleanProperty(indexed=False)
    share = ndb.FloatProperty()
    at = ndb.DateTimeProperty()
    raw = ndb.BlobProperty()
    packed = ndb.JsonProperty(compressed=True)
    many = ndb.StringProperty(repeated=True)
    none_of_many = ndb.IntegerProperty(repeated=True)
    nothing = ndb.StringProperty()
    other = ndb.KeyProperty()
    part = ndb.StructuredProperty(Part)
    parts = ndb.LocalStructuredProperty(Part, repeated=True)
    renamed = ndb.StringProperty("stored_otherwise")

    @classmethod
    def _get_kind(cls) -> str:
        return KIND


DAY = datetime.timedelta(days=1)
AT = datetime.datetime(2030, 5, 1, 12, 30, 0, 123456)  # noqa: DTZ001  Datastore's are naive.
VALUES: dict[str, Any] = {
    "name": "庭",
    "long": LONG,
    "flag": True,
    "share": 0.1,
    "at": AT,
    "raw": b"\x00\xff",
    "packed": {"a": [1, 2.5, "ü" * 1_000]},
    "many": ["a", "b", "a"],
    "none_of_many": [],
    "nothing": None,
    "renamed": "r",
}


@pytest.fixture
def watched_world(world: World) -> Iterator[World]:
    with world.context():
        yield world


def version(kind: type[ndb.Model]) -> None:
    """Let this process be of one version."""
    ndb.Model._kind_map[KIND] = kind


def read_and_put(key: Any) -> None:
    row = key.get()
    row.count += 1
    row.put()


def in_a_transaction(key: Any) -> None:
    transact(lambda: read_and_put(key))


def found_by_a_query(key: Any) -> None:
    [row] = Old.query().fetch()
    row.count += 1
    ndb.put_multi([row])


def by_a_guarded_commit(key: Any) -> None:
    client = ndb.get_context().client
    [found] = read_versions(client, [key])
    assert found is not None
    row, at = found
    row.count += 1
    commit_if_current(client, puts=[(row, at)])


@pytest.mark.parametrize(
    "change", [read_and_put, in_a_transaction, found_by_a_query, by_a_guarded_commit]
)
def test_a_version_erases_nothing_of_the_next_one(
    watched_world: World, change: Callable[[Any], None]
) -> None:
    """M3: values of every type are as they were, and are found by the queries that found them."""
    version(New)
    other = ndb.Key("Elsewhere", "x")
    parts = {"part": Part(name="p"), "parts": [Part(name="q"), Part(name="r")]}
    key = New(id="r", other=other, **VALUES, **parts).put()
    stored = New.query().get()

    version(Old)
    change(key)
    change(key)

    version(New)
    row = key.get()
    assert row.count == 2
    row.count = 0
    assert row == stored
    assert {name: getattr(row, name) for name in VALUES} == VALUES
    for query in (
        New.query(New.name == "庭"),
        New.query(New.many == "b"),
        New.query(New.nothing == None),  # noqa: E711
        New.query(New.at < AT + DAY),
        New.query(New.part.name == "p"),
        New.query(New.renamed == "r"),
    ):
        assert query.fetch(keys_only=True) == [key], query


def test_what_the_code_knows_is_the_codes_to_change(watched_world: World) -> None:
    """A property that both know is written as this version says, also when it is emptied."""
    version(New)
    key = New(id="r", name="old", count=5).put()

    row = key.get()
    row.name = None
    row.put()

    assert key.get().name is None


def test_an_entity_that_was_not_read_is_written_as_it_is_known(watched_world: World) -> None:
    """A put without a read still replaces the entity."""
    version(New)
    key = New(id="r", name="n").put()

    version(Old)
    Old(id="r", count=7).put()

    version(New)
    assert (key.get().name, key.get().count) == (None, 7)


def test_two_entities_do_not_share_what_they_keep(watched_world: World) -> None:
    """Each entity gives back its own."""
    version(New)
    keys = ndb.put_multi([New(id=name, name=name) for name in "ab"])

    version(Old)
    ndb.put_multi(ndb.get_multi(keys))

    version(New)
    assert [row.name for row in ndb.get_multi(keys)] == ["a", "b"]
