"""Calls of a group with what it does not take: the error says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.materialized_views import BadContributionError, View, ViewGroup, ViewMaintenance
from rollforward.materialized_views.updating.freshness import ConsistencyToken
from rollforward.runtime import Clients
from tests.infra.world import Services
from tests.rollforward.materialized_views.harness import (
    Number,
    Numbers,
    number,
    one_emulator,
    played,
)

pytestmark = pytest.mark.fast


class Letter(ndb.Model):
    """A source of another group."""


class Letters(View):
    """A view of another group, which has a table of its own."""

    source = Letter
    row_rate = None

    @staticmethod
    def contributions(letter: Letter) -> Any:
        return {"all": {}}


OTHER = ViewGroup("letters", Letters, queue="default")

Call = Callable[[ViewGroup, ViewMaintenance, Clients], Any]
READS: dict[str, Call] = {
    "read": lambda views, builds, clients: views.read(clients, Letters),
    "row": lambda views, builds, clients: views.row(Letters, "all"),
    "rows_after": lambda views, builds, clients: views.rows_after(Letters, None, 5),
    "freshness": lambda views, builds, clients: views.freshness(clients, Letters, "all"),
    "members": lambda views, builds, clients: views.members(Letters, "all", Letter),
    "waiting": lambda views, builds, clients: views.waiting(clients, Letters),
    "wait": lambda views, builds, clients: views.wait(clients, ConsistencyToken(), 1, view=Letters),
    "rebuild": lambda views, builds, clients: builds.rebuild(clients, Letters),
    "rebuilding": lambda views, builds, clients: builds.rebuilding(clients, Letters),
    "tables_of": lambda views, builds, clients: builds.tables_of(Letters),
    "verify": lambda views, builds, clients: builds.verify(clients, Letters, "v1"),
    "verification": lambda views, builds, clients: builds.verification(clients, Letters, "v1"),
}


@one_emulator
@pytest.mark.parametrize("call", READS.values(), ids=READS)
def test_a_view_of_another_group_is_refused(services: Services, call: Call) -> None:
    """A reader gets no empty list, nor the rows of a table that was replaced long ago."""
    with played(services, [Numbers]) as (world, views):
        builds = ViewMaintenance(views, queue="default")
        with pytest.raises(LookupError, match="played has no view letters: ask the group that"):
            call(views, builds, world.clients)
        assert views.catalog().views == {}


@one_emulator
def test_a_save_takes_entities_and_a_deletion_keys(services: Services) -> None:
    """A list of entities, or an entity in the place of its key, is named in the error."""
    with played(services, [Numbers]) as (world, views):
        several = [number("a", 1), number("b", 1)]
        with pytest.raises(TypeError, match="save takes entities, each as an argument of its own"):
            views.save(world.clients, several)
        with pytest.raises(TypeError, match=r"save_in_transaction takes entities, .* got None"):
            views.save_in_transaction(world.clients, None)
        with pytest.raises(TypeError, match=r"delete takes keys, .* got Number\(key"):
            views.delete(world.clients, several[0])
        with pytest.raises(TypeError, match="delete_in_transaction takes keys"):
            views.delete_in_transaction(world.clients, [several[0].key])


class Wrong(View):
    """A view that returns what its source says."""

    name = "wrong"
    source = Number
    row_rate = None

    @staticmethod
    def contributions(number: Number) -> Any:
        return number.said["returned"]


@one_emulator
@pytest.mark.parametrize("returned", [None, "all", ["all"], {"all": None}, {"all": 5}])
def test_a_view_that_returns_no_rows_is_told_their_form(services: Services, returned: Any) -> None:
    """A function that forgets its `return` is the most frequent of them."""
    with played(services, [Wrong]) as (world, views):
        form = r"contributions must be {row: {measure: value}}, and {} for a source in no row, got"
        with pytest.raises(BadContributionError, match=form):
            views.save(world.clients, Number(id="a", said={"returned": returned}))


@one_emulator
@pytest.mark.parametrize("prefix", ["all", 7, ["all"], None])
def test_a_prefix_that_is_no_tuple_is_refused(services: Services, prefix: Any) -> None:
    """It found no row, also where there were some."""
    with played(services, [Numbers]) as (world, views):
        with pytest.raises(BadContributionError, match="prefix must be a tuple of the first part"):
            views.read(world.clients, Numbers, prefix=prefix)
        with pytest.raises(BadContributionError, match="prefix must be a tuple of the first part"):
            views.is_waiting(Numbers, prefix=prefix)
