"""Views and groups that are refused when they are declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.materialized_views import View, ViewGroup, ViewMaintenance
from rollforward.registry import Registry
from tests.rollforward.materialized_views.harness import Numbers
from tests.rollforward.materialized_views.student_views import BUILDS, ByHouse, GradesBySize, Tutor
from tests.rollforward.materialized_views.updating.test_pacing import Paced


class Pet(ndb.PolyModel):
    """A kind of several classes."""


class Dog(Pet):
    """One of them."""


class LowerKind(ndb.Model):
    """A kind that is called as a view is by its class, and one of another class, too."""

    @classmethod
    def _get_kind(cls) -> str:
        return "numbers"


class Grade(ndb.Model):
    """A kind that is called as a view of the school."""

    @classmethod
    def _get_kind(cls) -> str:
        return "by_grade"


class SameKind(LowerKind):
    """The same kind by another class."""


def view_like(view: type[View], **how: Any) -> type[View]:
    """Return a view like another one, but for some of what it declares."""
    return type("Other", (view,), {"name": "other", **how})


def test_a_group_without_a_name_is_refused() -> None:
    """The paths of its tasks would have two slashes in a row, which Flask takes for one."""
    with pytest.raises(TypeError, match="a group of views needs a name"):
        ViewGroup("", Numbers)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ([Numbers, Numbers], "two views are called numbers: give one of them another `name`"),
        ([view_like(Numbers, name="a.b")], "view name must be 1 to 100 .*, got 'a.b'"),
        ([view_like(Numbers, name="Ä")], "view name must be"),
        ([view_like(Numbers, name="a" * 101)], "view name must be 1 to 100 lowercase"),
        ([view_like(Numbers, version=0)], "other.version must be at least 1, got 0"),
        ([Numbers, view_like(Paced, joins={Numbers: None})], "other joins a view"),
        ([view_like(Numbers, row_rate=0)], "other.row_rate must be positive, or None"),
        ([view_like(Numbers, row_burst=-1)], "other.row_burst must be at least 0, got -1"),
        ([view_like(Numbers, ranked="cents")], r"other.ranked must be a tuple, .*, got 'cents'"),
        ([view_like(Numbers, source=Dog)], "other cannot follow Dog, .* of the kind Pet"),
        ([view_like(Numbers, joins={Dog: None})], "other cannot follow Dog, .* follow Pet"),
        (
            [view_like(Numbers, source=LowerKind), Numbers],
            "other follows the kind numbers, and a view is called numbers, too",
        ),
        (
            [view_like(Numbers, name="numbers", joins={LowerKind: None})],
            "numbers follows the kind numbers, .*: give the view another `name`",
        ),
        (
            [view_like(Numbers, source=LowerKind, joins={SameKind: None})],
            "other has two functions for the kind numbers",
        ),
        ([GradesBySize], "grades_by_size is downstream of by_grade: put both into one group"),
    ],
    ids=[
        "twice",
        "dot",
        "letter",
        "length",
        "version",
        "join",
        "rate",
        "burst",
        "ranked",
        "class",
        "joined class",
        "kind",
        "joined kind",
        "kind twice",
        "alone",
    ],
)
def test_views_that_could_never_be_right_are_refused(
    declared: Sequence[type[View]], words: str
) -> None:
    """C1: when they are declared, and with what to do about it."""
    with pytest.raises(TypeError, match=words):
        ViewGroup("refused", *declared)


def test_views_are_taken_up_to_their_limits() -> None:
    """A name of a hundred characters, or by the class, and the first version."""
    longest = view_like(Numbers, name="a" * 100, version=1)
    ViewGroup("pets", view_like(Numbers, source=Pet))
    group = ViewGroup(
        "taken", longest, view_like(Paced, name=""), GradesBySize, GradesBySize.source
    )

    assert [*group.views] == ["a" * 100, "other", "grades_by_size", "by_grade"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            ViewGroup("other", view_like(Paced, name="by_house")),
            "the view by_house is in the groups",
        ),
        (
            ViewGroup("other", view_like(ByHouse)),
            "the kind Pupil is in the groups school and other",
        ),
        (
            ViewGroup("other", view_like(Paced, joins={Tutor: None})),
            "the kind Tutor is in the groups",
        ),
        (
            ViewGroup("other", view_like(Paced, source=Grade)),
            "the kind by_grade is in the groups",
        ),
        (ViewGroup("school", Paced), "the name school is in the groups"),
    ],
    ids=["view", "kind", "joined kind", "kind of rows", "name"],
)
def test_two_groups_that_share_anything_are_refused(other: ViewGroup, words: str) -> None:
    """C1: each would overwrite the rows, the markers or the catalog of the other one."""
    with pytest.raises(TypeError, match=words):
        Registry(BUILDS, ViewMaintenance(other))
