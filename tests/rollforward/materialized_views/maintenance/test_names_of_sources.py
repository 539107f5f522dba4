"""Sources whose kind is called as a walk over a table's own rows is, or has a colon in its name."""

from __future__ import annotations

from functools import partial

import pytest
from google.cloud import ndb

from rollforward.materialized_views import Contributions, Row, View
from rollforward.materialized_views.entities import ViewRow
from tests.infra.world import Services
from tests.rollforward.materialized_views.harness import (
    Number,
    in_a_thread,
    number,
    one_emulator,
    played,
    rebuild,
    verified,
)


class Below(View):
    """Rows of numbers, which are sources."""

    source = Number
    row_rate = None

    @staticmethod
    def contributions(number: Number) -> Contributions:
        return {number.row: number.said}


class Above(View):
    """All of these rows."""

    source = Below
    row_rate = None

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {"all": {"n": row.sum("n")}}


@one_emulator
@pytest.mark.parametrize("name", ["rows", "markers"])
def test_a_view_over_rows_of_this_name_is_rebuilt_and_verified(
    services: Services, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """C5: a rebuild walked over the new table's own rows, and swapped it in empty."""
    monkeypatch.setattr(Below, "name", name)
    play = played(services, [Below, Above])
    with play as (world, views):
        views.save(world.clients, number("a", 5, "x"), number("b", 7, "y"))
        world.settle()
        for view in (Above, Below):
            in_a_thread(partial(rebuild, world, view, play.builds))
        tables = {views.catalog().live(view) for view in (Above, Below)}
        stored = ndb.Key(ViewRow, f'{views.catalog().live(Above)}:"all"').get()
        keys = ViewRow.query().fetch(keys_only=True)
        assert (stored.counts, stored.sums["n"][:2]) == ({name: 2}, [2, 12])
        assert {key.id().partition(":")[0] for key in keys} == tables

        assert in_a_thread(lambda: verified(world, play.builds, Above, "sound")) == []
        stored.sums = {**stored.sums, "n": [2, 13, 74]}
        stored.put()
        [message] = in_a_thread(lambda: verified(world, play.builds, Above, "changed"))
        assert "its markers add up to" in message


class Sale(ndb.Model):
    """A source of a kind in which a source's name has two colons."""

    shop = ndb.StringProperty()
    amount = ndb.IntegerProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "test:names:Sale"


class ByShop(View):
    """Sales by shop."""

    source = Sale
    row_rate = None

    @staticmethod
    def contributions(sale: Sale) -> Contributions:
        return {sale.shop: {"amount": sale.amount}}


class AllShops(View):
    """The shops of all sales."""

    source = ByShop
    row_rate = None

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {"all": {"amount": row.sum("amount")}}


@one_emulator
def test_a_kind_may_have_a_colon_in_its_name(services: Services) -> None:
    """C1, C5: its updates failed for ever, as the key of such a source could not be read."""
    play = played(services, [ByShop, AllShops])

    def sums(view: type[View]) -> dict[object, float]:
        return {row.name: row.sum("amount") for row in views.read(world.clients, view).rows}

    with play as (world, views):
        sales = [Sale(id=f"{shop}{n}", shop=shop, amount=n) for shop in "ab" for n in (1, 2)]
        views.save(world.clients, *sales)
        world.settle()
        saved = sums(ByShop)
        views.delete(world.clients, sales[0].key)
        world.settle()
        in_a_thread(partial(rebuild, world, ByShop, play.builds))
        assert (saved, sums(ByShop), sums(AllShops)) == (
            {"a": 3, "b": 3},
            {"a": 2, "b": 3},
            {"all": 5},
        )
        counts = [row.counts for row in ViewRow.query().fetch() if "all" not in str(row.key.id())]
        assert {kind for count in counts for kind in count} == {"test:names:Sale"}
        assert in_a_thread(lambda: verified(world, play.builds, ByShop, "v")) == []
