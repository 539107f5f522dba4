"""Deletion of rows after their time: what is due still when it is read again."""

from __future__ import annotations

import pytest
from google.cloud import ndb

from rollforward.datastore.expiry import MAX_KEYS, delete_due, delete_expired
from rollforward.runtime.channel import limits
from tests.infra.world import World

pytestmark = [pytest.mark.parametrize("services", ["datastore"], indirect=True), pytest.mark.fast]


class ExpiringRow(ndb.Model):
    expires = ndb.StringProperty()


def test_a_key_that_was_used_anew_is_kept(world: World) -> None:
    """A row that another sweep deleted is no error; one that is new under its key stays."""
    with world.context():
        keys = [ExpiringRow(id=name, expires=name).put() for name in ("a", "b", "c")]
        keys[0].delete()
        ExpiringRow(id="b", expires="z").put()

        delete_expired(keys, "d")

        assert [row.key.id() for row in ExpiringRow.query().fetch()] == ["b"]


def test_more_keys_than_a_transaction_takes_are_counted_together(world: World) -> None:
    """Only deleted rows count."""
    with world.context():
        keys = ndb.put_multi(
            ExpiringRow(id=f"{n:03d}", expires="due" if n % 2 else "kept")
            for n in range(MAX_KEYS + 2)
        )

        assert delete_due(keys, lambda row: row.expires == "due") == MAX_KEYS // 2 + 1
        assert len(ExpiringRow.query().fetch(keys_only=True)) == MAX_KEYS // 2 + 1


def test_more_rows_than_a_commit_takes_are_deleted_by_several(world: World) -> None:
    """Limit `commit`, 500 entities: a sweep lists two kinds at a time, a page of 500 of each."""
    count = limits.COMMIT.most + 1
    with world.context():
        keys = ndb.put_multi(ExpiringRow(id=f"{n:03d}", expires="due") for n in range(count))

        assert delete_due(keys, lambda row: True) == count
        assert ExpiringRow.query().fetch(keys_only=True) == []
