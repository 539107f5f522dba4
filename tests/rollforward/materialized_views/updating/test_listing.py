"""The list of updates that wait for a table."""

from __future__ import annotations

from rollforward.materialized_views.updating.transport import list_unacked
from rollforward.outbox.entities import OutboxTask, outbox_key, rows_of_tags
from tests.infra.world import World

TABLE = "by_grade.1.1"


def put(row: str | int, tag: str | None) -> None:
    OutboxTask(key=outbox_key(row), path="/", queue="q", body="{}", tag=tag).put()  # type: ignore[arg-type]


def test_a_list_has_what_ndb_finds_in_the_same_order(world: World) -> None:
    """C1: each waiting update of the table and none of another, also of a row made by hand."""
    with world.context():
        for number, row in enumerate(('"é\U0001f600"', "1", "1", "", "10")):
            put(f"{number:x}|20300501T120000000000|h|{number:x}0ffee|0000|1a2b", f"{TABLE}:{row}")
        put(7, f"{TABLE}:7")
        put("a|of another", f"{TABLE[:-1]}10:1")
        put("b|of none", None)
        query = rows_of_tags(f"{TABLE}:")
        expected = [(row.key.id(), row.tag) for row in query.fetch(projection=["tag"])]

        found = list_unacked(world.clients, TABLE, "", 250)

        assert found == expected
        assert len(found) == 6
        for after in {tag for _, tag in expected}:
            behind = [(id_, tag) for id_, tag in expected if tag >= after]
            assert list_unacked(world.clients, TABLE, after, 250) == behind
            assert list_unacked(world.clients, TABLE, after, 2) == behind[:2]
