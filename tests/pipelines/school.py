"""Students, teachers and views of them: shared by the tests of materialized views."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from google.cloud import ndb

from models.materialized_views import (
    RowMarker,
    SourceMarker,
    ViewRow,
    marker_key,
    row_key,
    row_marker_key,
)
from pipelines.materialized_views import Contributions, View, Views
from pipelines.view_builds import Builds
from pipelines.view_rows import Held, Row, row_text
from pipelines.view_updates import source_name
from tests.world import Services, World


class Pupil(ndb.Model):
    """A source."""

    grade = ndb.IntegerProperty(indexed=False)
    points = ndb.FloatProperty(indexed=False)
    house = ndb.TextProperty()


class Tutor(ndb.Model):
    """A source of the other kind."""

    grade = ndb.IntegerProperty(indexed=False)


class ByGrade(View):
    """Pupils by grade, joined with their tutors."""

    source = Pupil
    ranked = ("points", "house")
    row_rate = None

    @staticmethod
    def contributions(pupil: Pupil) -> Contributions:
        if pupil.grade is None:
            return {}
        measures: dict[str, Any] = {"house": pupil.house or "none"}
        if pupil.points is not None:
            measures["points"] = pupil.points
        return {pupil.grade: measures}

    @staticmethod
    def from_tutor(tutor: Tutor) -> Contributions:
        return {tutor.grade: {"tutor": tutor.key.id()}}

    joins = {Tutor: from_tutor}


class ByHouse(View):
    """Pupils by house: a second view of the same sources."""

    source = Pupil
    row_rate = None

    @staticmethod
    def contributions(pupil: Pupil) -> Contributions:
        return {pupil.house: {}} if pupil.house else {}


class GradesBySize(View):
    """How many grades have how many pupils: a view of a view."""

    source = ByGrade
    row_rate = None

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {row.count: {"points": row.sum("points")}} if row.count else {}


SCHOOL = Views("school", ByGrade, ByHouse, GradesBySize, queue="default")
BUILDS = Builds(SCHOOL, queue="default")


def school_world(services: Services, views: Views = SCHOOL) -> World:
    """Return a world that delivers the updates of these views."""
    return World(services, builds=[BUILDS if views is SCHOOL else Builds(views)])


def facts(world: World, view: type[View] = ByGrade, views: Views = SCHOOL) -> dict[Any, Any]:
    """Return everything in a view's table that a reader could see."""
    with world.context():
        table = views.catalog().live(view)
        first, beyond = ndb.Key(ViewRow, f"{table}:"), ndb.Key(ViewRow, f"{table};")
        rows = ViewRow.query(ViewRow._key > first, ViewRow._key < beyond).fetch()
        return {
            Row.of(row).name: (dict(row.counts), dict(row.sums), row.fingerprint) for row in rows
        }
