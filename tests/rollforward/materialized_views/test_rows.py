"""What rows say: sums, ranks, members, in the order of their names."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.materialized_views import Row
from rollforward.materialized_views.entities import ViewRow
from rollforward.materialized_views.rows import ranks_of
from rollforward.materialized_views.updating import freshness
from rollforward.materialized_views.updating.freshness import row_order
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    NOON,
    Number,
    Numbers,
    counts,
    number,
    one_emulator,
    played,
)
from tests.rollforward.materialized_views.student_views import SCHOOL, ByGrade, Pupil, Tutor, pupil

pytestmark = pytest.mark.fast


def test_a_row_says_count_sum_mean_and_variance(services: Services) -> None:
    """C1: exactly, over the sources that have the measure."""
    with played(services, [Numbers]) as (world, views):
        numbers = [2, 4, 4, 4, 5, 5, 7, 9]
        views.save(world.clients, *[number(f"s{i}", n) for i, n in enumerate(numbers)])
        views.save(world.clients, number("none", other=1))
        world.settle()

        row = views.row(Numbers, "all")

        assert row is not None
        assert (row.count, row.sum("n"), row.mean("n"), row.variance("n")) == (9, 40, 5.0, 4.0)
        assert (row.sum("unknown"), row.mean("unknown"), row.variance("unknown")) == (0, None, None)


def test_a_page_of_rows_ends_with_its_last_one_whoever_is_in_it(here: World) -> None:
    """C1: a row that holds joined sources only is returned too, or its reader would end there."""
    tutors = [Tutor(id=f"tutor {grade}", grade=grade) for grade in (1, 2)]
    SCHOOL.save(here.clients, *tutors, pupil("ada", 3))
    here.settle()
    rows: list[Row] = []
    while page := SCHOOL.rows_after(ByGrade, rows[-1].name if rows else None, 1):
        rows += page

    assert [(row.name, row.count) for row in rows] == [(1, 0), (2, 0), (3, 1)]


def test_a_row_says_whole_numbers_and_parts_of_them() -> None:
    """As they are: a whole sum is no float, and a half is not left out."""
    row = Row("r", {"Pupil": 4}, {"whole": [4, 6, 14], "half": [4, "3/2", "5/4"]}, NOON, "Pupil")

    assert (repr(row.sum("whole")), repr(row.sum("half"))) == ("6", "1.5")
    assert (row.mean("whole"), row.mean("half")) == (1.5, 0.375)
    assert (row.variance("whole"), row.variance("half")) == (1.25, 0.171875)


@one_emulator
def test_floats_add_up_exactly_in_any_order(services: Services) -> None:
    """C3: tenths, a huge and a tiny one, put in and taken out again, leave no rest."""
    numbers: list[float] = [0.1, 0.2, 1e140, -1e-300, 0.3, 2**53 + 1, -1e140, 5e-324]
    named = list(enumerate(numbers))
    ends = []
    for names in (named, named[::-1], named[3:] + named[:3]):
        with played(services, [Numbers]) as (world, views):
            order = [number(f"s{i}", None, m=n) for i, n in names]
            for each in order:
                views.save(world.clients, each)
                world.settle()
            (row,) = ViewRow.query().fetch()
            ends.append(row.sums["m"])
            views.delete(world.clients, *[each.key for each in order[:-1]])
            world.settle()
            (row,) = ViewRow.query().fetch()
            assert Fraction(row.sums["m"][1]) == Fraction(order[-1].said["m"])

    assert ends[0] == ends[1] == ends[2]
    assert Fraction(ends[0][1]) == sum(map(Fraction, numbers))


def test_least_greatest_and_distinct_values(services: Services, monkeypatch: Any) -> None:
    """Of a thousand values a page; here of three, so that there are many pages."""
    monkeypatch.setattr(freshness, "MAX_LISTED", 3)
    with played(services, [Numbers]) as (world, views):
        numbers = [5, -2.5, 10, 9, 0, -0.0, 5.0, "text", "other", -300, 2**53]
        views.save(world.clients, *[number(f"s{i}", n) for i, n in enumerate(numbers)])
        views.save(world.clients, number("elsewhere", 1e6, row="another"))
        world.settle()

        greatest = views.top(Numbers, "all", "n", 3)
        least = views.top(Numbers, "all", "n", 3, lowest=True)

        assert [value for _, value in greatest] == [2**53, 10, 9]
        assert [value for _, value in least] == [-300, -2.5, 0]
        assert greatest[0][0] == ndb.Key(Number, "s10")
        # Five is said twice, and so is zero; two are texts.
        assert views.distinct(Numbers, "all", "n") == 9
        views.save(world.clients, *[number(f"t{i}", 100 + i, row="six") for i in range(6)])
        world.settle()
        assert views.distinct(Numbers, "six", "n") == 6
        assert views.distinct(Numbers, "nobody's", "n") == 0
        with pytest.raises(LookupError):
            views.top(Numbers, "all", "unranked")


def test_the_greatest_goes_and_the_second_takes_its_place(here: World) -> None:
    """C1: what is read of the markers needs nothing that was remembered."""
    SCHOOL.save(here.clients, pupil("ada", 1, 9), pupil("bob", 1, 7))
    here.settle()
    SCHOOL.delete(here.clients, ndb.Key(Pupil, "ada"))
    here.settle()

    assert SCHOOL.top(ByGrade, 1, "points") == [(ndb.Key(Pupil, "bob"), 7.0)]


def test_a_left_join_shows_rows_that_have_one_of_the_views_own_kind(here: World) -> None:
    """A row that only a tutor is in is kept and not shown; both sides can be listed."""
    SCHOOL.save(here.clients, Tutor(id="t1", grade=1), Tutor(id="t2", grade=2), pupil("ada", 1))
    here.settle()

    assert counts(here) == {1: 1}
    assert SCHOOL.row(ByGrade, 2) is None
    assert SCHOOL.members(ByGrade, 1, Tutor) == [(ndb.Key(Tutor, "t1"), {"tutor": "t1"})]
    assert [key.id() for key, _ in SCHOOL.members(ByGrade, 1, Pupil)] == ["ada"]
    assert SCHOOL.members(ByGrade, 2, Pupil) == []
    SCHOOL.save(here.clients, pupil("bob", 2))
    here.settle()
    row = SCHOOL.row(ByGrade, 2)
    assert row is not None
    assert (row.count, dict(row.counts)) == (1, {"Tutor": 1, "Pupil": 1})


@one_emulator
def test_tenants_see_their_own_rows(services: Services) -> None:
    """`prefix` takes whole parts: "a" is not under "ab", nor 1 under 12."""
    rows: list[Any] = [["a", 1, "x"], ["a", 1, "y"], ["a", 12, "x"], ["ab", 1, "x"], "a", ["é", 1]]
    with played(services, [Numbers]) as (world, views):
        numbers = [number(f"s{i}", 1, row=row) for i, row in enumerate(rows)]
        views.save(world.clients, *numbers)
        assert views.is_waiting(Numbers, 2, prefix=("a", 1))
        assert not views.is_waiting(Numbers, 3, prefix=("a", 1))
        assert len(views.waiting(world.clients, Numbers, prefix=("é",))) == 1
        world.settle()

        def under(*parts: Any) -> list[Any]:
            return [row.name for row in views.read(world.clients, Numbers, prefix=parts).rows]

        assert under("a", 1) == [("a", 1, "x"), ("a", 1, "y")]
        assert under("a") == [("a", 1, "x"), ("a", 1, "y"), ("a", 12, "x")]
        assert under("é") == [("é", 1)]
        assert under("nobody") == []
        assert not views.is_waiting(Numbers)


def test_rows_stand_in_order() -> None:
    """Numbers by value, then texts, then tuples part by part."""
    names: list[Any] = [10, 2, "b", "a", ("b", 1), ("a", 10), ("a", 2), ("a",), -1]
    rows = [Row(name, {}, {}, NOON) for name in names]

    ordered = [row.name for row in sorted(rows, key=row_order)]

    assert ordered == [-1, 2, 10, "a", "b", ("a",), ("a", 2), ("a", 10), ("b", 1)]


def test_ranks_are_written_alike_in_each_version() -> None:
    """Numbers by their bits, short texts as they are, long ones by a digest: they are compared."""
    values: list[Any] = [-2.5, 0, -0.0, 1, 1.0, 2**53, "b", "é" * 199, "é" * 199 + "f", "é" * 200]

    ranks = [ranks_of({"n": value, "m": 1}, {"n": "p|", "x": "q|"}) for value in values]

    assert [rank.removeprefix("p|") for (rank,) in ranks] == [
        "n3ffbffffffffffff",
        "n8000000000000000",
        "n8000000000000000",
        "nbff0000000000000",
        "nbff0000000000000",
        "nc340000000000000",
        "tb",
        "t" + "é" * 199,
        "t" + "é" * 199 + "f",
        "udf20b2aa6262e99e133aa7f3614be707d35c4155d17e2aa7cbb49da555a454c3",
    ]
