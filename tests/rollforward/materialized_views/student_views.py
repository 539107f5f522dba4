"""Students, teachers and views of them: shared by the tests of materialized views."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from google.cloud import ndb

from rollforward.continuations.entities import (
    ContinuationPage,
    ContinuationRun,
    ContinuationTotals,
)
from rollforward.materialized_views import Contributions, Row, View, ViewGroup, ViewMaintenance
from rollforward.materialized_views.entities import RowMarker, SourceMarker, ViewCatalog, ViewRow
from rollforward.outbox.entities import OutboxTask
from tests.infra.world import Services, World

STORED = (
    RowMarker,
    SourceMarker,
    ViewCatalog,
    ViewRow,
    OutboxTask,
    ContinuationTotals,
    ContinuationPage,
    ContinuationRun,
)


class Pupil(ndb.Model):
    """A source."""

    grade = ndb.IntegerProperty(indexed=False)
    points = ndb.FloatProperty(indexed=False)
    house = ndb.TextProperty()


class Tutor(ndb.Model):
    """A source of the other kind."""

    grade = ndb.IntegerProperty(indexed=False)


def pupil(name: str, grade: int | None, points: float | None = None, house: str = "") -> Pupil:
    return Pupil(id=name, grade=grade, points=points, house=house or None)


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

    joins: ClassVar[Mapping[Any, Any]] = {Tutor: from_tutor}


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


SCHOOL = ViewGroup("school", ByGrade, ByHouse, GradesBySize, queue="default")
BUILDS = ViewMaintenance(SCHOOL, queue="default")


def school_world(services: Services, views: ViewGroup = SCHOOL) -> World:
    """Return a world that delivers the updates of these views."""
    return World(services, builds=[BUILDS if views is SCHOOL else ViewMaintenance(views)])


def facts(world: World, view: type[View] = ByGrade, views: ViewGroup = SCHOOL) -> dict[Any, Any]:
    """Return everything in a view's table that a reader could see."""
    with world.context():
        table = views.catalog().live(view)
        first, beyond = ndb.Key(ViewRow, f"{table}:"), ndb.Key(ViewRow, f"{table};")
        rows = ViewRow.query(ViewRow._key > first, ViewRow._key < beyond).fetch()
        return {
            Row.of(row).name: (dict(row.counts), dict(row.sums), row.fingerprint) for row in rows
        }


def wipe() -> None:
    """Remove everything, so that each play begins alike."""
    kinds = (Pupil, Tutor, *STORED)
    ndb.delete_multi([key for kind in kinds for key in kind.query().fetch(keys_only=True)])


def differences(views: ViewGroup = SCHOOL) -> list[str]:
    """Recompute every view from its sources, by code of the tests' own; list what differs."""
    catalog = views.catalog()
    found = []
    for view in views.views.values():
        table = catalog.live(view)
        should = _recomputed(views, view, catalog.live)
        says = {
            row.key.id().removeprefix(f"{table}:"): (dict(row.counts), dict(row.sums))
            for row in ViewRow.query().fetch()
            if row.key.id().startswith(f"{table}:")
        }
        markers = Counter(
            marker.key.parent().id().removeprefix(f"{table}:")
            for marker in RowMarker.query().fetch()
            if marker.key.parent().id().startswith(f"{table}:")
        )
        counted = {row: sum(counts.values()) for row, (counts, _) in says.items()}
        if says != should:
            found.append(f"{table} says {says}, its sources {should}")
        if counted != dict(markers):
            found.append(f"{table} counts {counted}, it has markers {dict(markers)}")
    return found


def _recomputed(views: ViewGroup, view: type[View], live: Callable[[Any], str]) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    sums: dict[str, dict[str, list[Fraction]]] = defaultdict(lambda: defaultdict(list))
    for kind, source in _sources(view, live):
        for row, measures in views._internals.definitions.rows_for(view, kind, source).items():
            counts[row][kind] += 1
            for measure, value in measures.items():
                if not isinstance(value, str):
                    sums[row][measure].append(Fraction(value))
    return {row: (dict(counts[row]), exact_sums(sums[row])) for row in counts}


def _sources(view: type[View], live: Callable[[Any], str]) -> list[tuple[str, Any]]:
    if isinstance(view.source, type) and issubclass(view.source, View):
        prefix = f"{live(view.source)}:"
        rows = [row for row in ViewRow.query().fetch() if row.key.id().startswith(prefix)]
        return [(view.source.name, row) for row in rows]
    kinds = [view.source, *view.joins]
    return [(kind.__name__, source) for kind in kinds for source in kind.query().fetch()]


def exact_sums(values: Mapping[str, Sequence[Fraction]]) -> dict[str, list[Any]]:
    """Return sums as rows store them: how many, the sum, the sum of squares."""

    def plain(number: Fraction) -> int | str:
        return int(number) if number.denominator == 1 else str(number)

    return {
        measure: [
            len(many),
            plain(sum(many, Fraction())),
            plain(sum((n * n for n in many), Fraction())),
        ]
        for measure, many in values.items()
    }
