"""Commits in one round trip: what they refuse, and that a refused one writes nothing."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore import helpers
from google.cloud.ndb import model

from rollforward.datastore.conversion.protobufs import protobuf_of, protobuf_of_key
from rollforward.datastore.transactions import OUTCOME_UNKNOWN
from rollforward.datastore.versions import CHANGED, insert_all, put_if_current
from rollforward.testing.injection import REPLY_LOST
from tests.infra.world import World
from tests.rollforward.datastore.counters import Tally, break_call, counted

pytestmark = pytest.mark.fast


def _insert(watched_world: World, count: int = 1) -> tuple[Tally, int]:
    tally = Tally(id="t", count=count)
    [version] = insert_all(watched_world.clients.datastore, [tally])
    return tally, version


def test_an_owner_writes_again_and_again_in_one_round_trip_each(watched_world: World) -> None:
    """Each commit tells the version that the next one needs: no begin, no read."""
    tally, version = _insert(watched_world)
    for count in (2, 3, 4):
        tally.count = count
        version = put_if_current(watched_world.clients.datastore, tally, version)

    assert watched_world.plan.calls == ["Commit"] * 4
    assert counted() == 4


def test_a_write_over_somebody_elses_is_refused(watched_world: World) -> None:
    """Compare-and-set: the entity was written since, so nothing is."""
    tally, version = _insert(watched_world)
    Tally(id="t", count=10).put()

    tally.count = 2
    with pytest.raises(CHANGED):
        put_if_current(watched_world.clients.datastore, tally, version)

    assert counted() == 10


def test_a_write_of_what_was_deleted_is_refused(watched_world: World) -> None:
    """A deleted entity is not brought back to life."""
    tally, version = _insert(watched_world)
    tally.key.delete()

    with pytest.raises(CHANGED):
        put_if_current(watched_world.clients.datastore, tally, version)

    assert Tally.get_by_id("t") is None


def test_a_write_whose_reply_was_lost_is_refused_when_it_is_repeated(watched_world: World) -> None:
    """The version of a commit is known only by its reply: repeating it cannot count twice."""
    tally, version = _insert(watched_world)
    tally.count = 2
    break_call(watched_world, "Commit", REPLY_LOST)
    with pytest.raises(OUTCOME_UNKNOWN):
        put_if_current(watched_world.clients.datastore, tally, version)

    tally.count = 3
    with pytest.raises(CHANGED):
        put_if_current(watched_world.clients.datastore, tally, version)

    assert counted() == 2


def test_all_or_none_is_inserted(watched_world: World) -> None:
    """One that exists refuses the others of the same commit."""
    _insert(watched_world)

    with pytest.raises(rpc_errors.AlreadyExists):
        insert_all(watched_world.clients.datastore, [Tally(id="new"), Tally(id="t", count=9)])

    assert Tally.get_by_id("new") is None
    assert counted() == 1


class Everything(ndb.Model):
    """A property of each type that ndb has."""

    whole = ndb.IntegerProperty()
    real = ndb.FloatProperty(indexed=False)
    truth = ndb.BooleanProperty()
    text = ndb.TextProperty()
    name = ndb.StringProperty(repeated=True)
    unindexed = ndb.IntegerProperty(repeated=True, indexed=False)
    data = ndb.BlobProperty(compressed=True)
    body = ndb.JsonProperty()
    at = ndb.DateTimeProperty()
    day = ndb.DateProperty(indexed=False)
    other = ndb.KeyProperty()
    place = ndb.GeoPtProperty()
    part = ndb.StructuredProperty(Tally)
    local = ndb.LocalStructuredProperty(Tally, repeated=True)


PLAIN = {
    "whole": 2**63 - 1,
    "real": -0.0,
    "truth": False,
    "text": "ü\U0001f600",
    "name": ["a", "b"],
    "unindexed": [1, 2],
    "body": {"a": [1, 2.5, None]},
    "at": datetime.datetime(2030, 5, 1, 12, 0, 0, 123456),  # noqa: DTZ001
    "day": datetime.date(1969, 12, 31),
}


def others() -> dict[str, Any]:
    """Return values that the client library converts."""
    return {
        "data": b"x" * 100,
        "other": ndb.Key("Tally", 5, "Tally", "x"),
        "place": ndb.GeoPt(1.5, -2.5),
        "part": Tally(count=3),
        "local": [Tally(count=4), Tally(count=5)],
    }


@pytest.mark.parametrize("parent", [None, "p", 7])
@pytest.mark.parametrize("has_others", [False, True])
def test_an_entity_becomes_the_same_protobuf_as_by_the_client_library(
    watched_world: World, parent: str | int | None, has_others: bool
) -> None:
    """Of plain values and of others, with numbers and names in its key, in a namespace."""
    above = ndb.Key("Tally", parent) if parent is not None else None
    key = ndb.Key(Everything, parent or "e", parent=above)
    for values in ({}, PLAIN, {**PLAIN, "name": [], "at": None}):
        entity = Everything(key=key, **values, **(others() if has_others else {}))
        theirs = helpers.entity_to_protobuf(model._entity_to_ds_entity(entity))._pb

        assert protobuf_of(entity) == theirs
        assert protobuf_of_key(key) == theirs.key


class PlainThing(ndb.Model):
    """A property of each class that is converted without the client library."""

    whole = ndb.IntegerProperty(default=3)
    real = ndb.FloatProperty(indexed=False)
    truth = ndb.BooleanProperty(required=True, default=True)
    text = ndb.TextProperty("t")
    name = ndb.StringProperty(repeated=True)
    numbers = ndb.IntegerProperty(repeated=True, indexed=False)
    data = ndb.BlobProperty()
    body = ndb.JsonProperty(default={})
    bodies = ndb.JsonProperty(repeated=True)
    at = ndb.DateTimeProperty()


PLAIN_THINGS: list[dict[str, Any]] = [
    {},
    {"whole": -(2**63), "real": 2, "truth": False, "text": "ü\U0001f600", "data": b"\0\xff"},
    {"name": ["a", "b"], "numbers": [1, 0], "body": {"ä": [1, 2.5, None]}, "bodies": [{}, [1]]},
    {"at": datetime.datetime(2030, 5, 1, 12, 0, 0, 123456), "name": [], "body": None},  # noqa: DTZ001
    {"at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), "real": -0.0, "whole": None},  # noqa: DTZ001
]


@pytest.mark.parametrize("values", PLAIN_THINGS)
def test_a_plain_entity_becomes_the_same_protobuf(
    watched_world: World, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    """Before it is stored, after it was read, and after a value of it was read; alone by us."""
    new = PlainThing(id="p", **values)
    insert_all(watched_world.clients.datastore, [PlainThing(id="p", **values)])
    stored = ndb.Key(PlainThing, "p").get()
    touched = ndb.Key(PlainThing, "p").get()
    touched.body, touched.text = touched.body, touched.text
    for entity in (new, stored, touched):
        theirs = _by_the_library(entity)
        with monkeypatch.context() as patch:
            patch.delattr(helpers, "entity_to_protobuf")

            assert protobuf_of(entity) == theirs
    assert stored == new


def _by_the_library(entity: ndb.Model) -> Any:
    """Return what ndb and the client make of a copy: they write into what they convert."""
    twin = type(entity)(key=entity.key)
    twin._values = {name: copy.copy(value) for name, value in entity._values.items()}
    return helpers.entity_to_protobuf(model._entity_to_ds_entity(twin))._pb


class Shouting(ndb.StringProperty):
    """A property with a conversion of its own."""

    def _to_base_type(self, value: str) -> str:
        return value.upper()


class OddThing(ndb.Model):
    """Properties with code of the user's."""

    loud = Shouting()
    checked = ndb.IntegerProperty(validator=lambda _, value: abs(value))
    needed = ndb.TextProperty(required=True)


def test_what_is_not_plain_is_converted_by_the_client_library(watched_world: World) -> None:
    """A property of the user's class, one with a validator, and a value that is missing."""
    assert _by_the_library(OddThing(id="o", loud="a", checked=-1, needed="")) == protobuf_of(
        OddThing(id="o", loud="a", checked=-1, needed="")
    )
    with pytest.raises(ndb.exceptions.BadValueError, match="needed"):
        protobuf_of(OddThing(id="o"))


class NeedyThing(ndb.Model):
    """A plain kind that needs a value."""

    needed = ndb.TextProperty(required=True)


def test_a_plain_entity_without_a_value_that_it_needs_is_refused(watched_world: World) -> None:
    """As by ndb, with the property's name."""
    with pytest.raises(ndb.exceptions.BadValueError, match="needed"):
        protobuf_of(NeedyThing(id="n"))


class ListedThing(ndb.Model):
    """A plain kind with lists, which code may change in place."""

    names = ndb.StringProperty(repeated=True)
    times = ndb.DateTimeProperty(repeated=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("names", "ü" * 751),
        ("times", datetime.datetime(2030, 5, 1, tzinfo=datetime.UTC)),
    ],
)
def test_a_value_that_ndb_refuses_is_refused_in_a_list_that_was_changed_in_place(
    watched_world: World, name: str, value: Any
) -> None:
    """No assignment has checked it: the conversion is the last that can."""
    thing = ListedThing(id="l")
    getattr(thing, name).append(value)
    with pytest.raises(ndb.exceptions.BadValueError, match=name):
        protobuf_of(thing)


class HiddenThing(PlainThing):
    """A kind that hides a property of its base, and stores another one under a new name."""

    whole = None
    text = ndb.TextProperty("said")


class KeyedThing(ndb.Model):
    """A kind with a property of the name `key`."""

    key = ndb.StringProperty()


def test_the_properties_of_a_base_that_a_kind_hides_are_written_as_by_ndb(
    watched_world: World,
) -> None:
    """So that a query over the base's property finds the entity, as before."""
    thing = HiddenThing(id="h", text="a")
    theirs = _by_the_library(thing)
    assert protobuf_of(thing) == theirs
    assert {"whole", "t", "said"} <= set(theirs.properties)


def test_a_property_of_the_name_key_is_not_taken_for_the_key(watched_world: World) -> None:
    """The entity is written under its own key."""
    thing = KeyedThing()
    thing._key = ndb.Key(KeyedThing, "k")
    thing._values["key"] = "a text"
    message = protobuf_of(thing)
    assert message.key == protobuf_of_key(thing._key)
    assert message.properties["key"].string_value == "a text"
