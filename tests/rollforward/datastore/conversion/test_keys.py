"""Keys without the client library's copies: they are the same keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.cloud import ndb

from rollforward.datastore.conversion.keys import child_key, key_id, key_kind
from rollforward.runtime import open_datastore


class Parent(ndb.Model):
    pass


class Child(ndb.Model):
    pass


@pytest.fixture(params=["", "tenant-1"], autouse=True)
def namespace(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the test a context, of the default namespace or another; nothing is called."""
    with open_datastore("demo-keys", emulator="127.0.0.1:9").context(namespace=request.param):
        yield


@pytest.mark.parametrize("database", [None, "orders"])
@pytest.mark.parametrize("namespace_of_key", [None, "tenant-2"])
@pytest.mark.parametrize("path", [("Parent", "a"), ("Parent", 7), ("Root", 1, "Parent", "a|:~")])
def test_a_key_below_another_is_the_one_that_ndb_makes(
    path: tuple[str | int, ...], namespace_of_key: str | None, database: str | None
) -> None:
    """C1: the marker of a source is below it, in its namespace and its database."""
    parent = ndb.Key(*path, namespace=namespace_of_key, database=database)
    expected = ndb.Key(Child, "m", parent=parent)

    made = child_key(parent, Child, "m")
    assert (made, made.urlsafe(), made.parent()) == (expected, expected.urlsafe(), parent)
    assert (made.namespace(), made.database()) == (expected.namespace(), expected.database())


@pytest.mark.parametrize(
    "key_path", [("Parent", "a"), ("Parent", 7), ("Parent", None), ("Root", 1, "Parent", None)]
)
def test_the_kind_and_the_id_of_a_key_are_those_that_ndb_says(
    key_path: tuple[str | int | None, ...],
) -> None:
    """C1: a source without an id gets one."""
    key = ndb.Key(*key_path)
    assert (key_kind(key), key_id(key)) == (key.kind(), key.id())
