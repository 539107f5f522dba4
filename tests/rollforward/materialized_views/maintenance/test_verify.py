"""Verify: every difference between a view and its sources is listed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.continuations import runs
from rollforward.continuations.entities import RUNNING, ContinuationRun
from rollforward.continuations.jobs import (
    DeferredItemError,
    ItemError,
    RefusedItemError,
    SkippedItemError,
)
from rollforward.materialized_views import Verification
from rollforward.materialized_views.entities import (
    RowMarker,
    SourceMarker,
    ViewRow,
    marker_key,
    row_key,
    row_marker_key,
)
from rollforward.materialized_views.maintenance import audit
from rollforward.materialized_views.maintenance.verify import Verifier
from rollforward.materialized_views.maintenance.walks import Walk
from rollforward.materialized_views.updates import source_name
from rollforward.tasks.runs import UnknownRunError
from tests.infra.world import World
from tests.rollforward.materialized_views.harness import busy, one_emulator, verified
from tests.rollforward.materialized_views.student_views import (
    BUILDS,
    SCHOOL,
    ByGrade,
    GradesBySize,
    Pupil,
    pupil,
)


@pytest.fixture
def grown(world: World) -> World:
    """A world with three pupils in their rows."""
    with world.context():
        SCHOOL.save(
            world.clients, pupil("ada", 1, 1, "x"), pupil("bob", 1, 2, "x"), pupil("eve", 2, 3)
        )
    world.settle()
    return world


def by_hand(world: World, change: Any) -> list[str]:
    """Change something past the views; return what a verification says of it."""
    assert verified(world, BUILDS, ByGrade, "before") == []
    with world.context():
        change()
    return verified(world, BUILDS, ByGrade, "after")


def test_verify_lists_a_row_that_was_edited(grown: World) -> None:
    """C5: by what its markers add up to."""

    def edit() -> None:
        row = row_key("by_grade.1.1", "1").get()
        row.counts = {"Pupil": 3}
        row.put()

    (found,) = by_hand(grown, edit)

    assert found.startswith("by_grade.1.1:1: row 1 says")


def test_verify_lists_a_row_that_was_deleted(grown: World) -> None:
    """C5: its markers are still there, and nothing else tells."""
    found = by_hand(grown, lambda: row_key("by_grade.1.1", "1").delete())

    assert len(found) == 2
    assert all("row 1 is not there" in words for words in found)


def test_verify_lists_a_row_that_cannot_be_read(grown: World) -> None:
    """C5: and goes on with the others."""

    def act() -> None:
        row = row_key("by_grade.1.1", "1")
        RowMarker(id="nonsense", parent=row, sequence=1, measures={}).put()
        edited = row_key("by_grade.1.1", "2").get()
        edited.counts = {"Pupil": 7}
        edited.put()

    found = " ".join(by_hand(grown, act))
    assert "row 1 cannot be read" in found
    assert "row 2 says" in found


def test_verify_reads_all_markers_of_a_row(grown: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: of five hundred a page; here of three, so that a row has many, and a full last one."""
    monkeypatch.setattr(audit, "PAGE_SIZE", 3)
    with grown.context():
        SCHOOL.save(grown.clients, *[pupil(f"q{n}", 9, n) for n in range(6)])
    grown.settle()
    sound = verified(grown, BUILDS, ByGrade, "before")
    with grown.context():
        markers = RowMarker.query(ancestor=row_key("by_grade.1.1", "9")).order(RowMarker._key)
        last = markers.fetch()[-1]
        last.measures = {**last.measures, "points": 77.0}
        last.put()

    found = verified(grown, BUILDS, ByGrade, "after")

    assert sound == []
    assert any("row 9 says" in words for words in found)


def test_verify_lists_a_source_that_was_put_past_the_view(grown: World) -> None:
    """C5: by what it contributes."""
    (found,) = by_hand(grown, lambda: pupil("ada", 2, 1, "x").put())

    assert found.startswith("Pupil/ada: its marker says")


def test_verify_lists_a_source_that_was_deleted_past_the_view(grown: World) -> None:
    """C5: no walk over sources meets it; its row does."""
    (found,) = by_hand(grown, lambda: ndb.Key(Pupil, "eve").delete())

    assert "row 2 holds 1 sources that do not say so" in found
    assert "eve" in found


def test_verify_lists_a_marker_that_was_deleted(grown: World) -> None:
    """C5: at its source, and at its row."""

    def delete() -> None:
        row_marker_key(row_key("by_grade.1.1", "1"), source_name(ndb.Key(Pupil, "ada"))).delete()

    found = by_hand(grown, delete)

    assert len(found) == 2
    assert any("does not hold its change 1" in words for words in found)
    assert any("its markers add up to" in words for words in found)


@pytest.mark.parametrize("ranks", [[], ["elsewhere|n8000000000000000"]], ids=["gone", "other"])
def test_verify_lists_a_source_that_is_ranked_by_another_value(
    grown: World, ranks: list[str]
) -> None:
    """C5: sums do not tell, and the least, the greatest and the distinct values hang on it."""

    def edit() -> None:
        marker = row_marker_key(row_key("by_grade.1.1", "1"), source_name(ndb.Key(Pupil, "ada")))
        found = marker.get()
        found.ranks = ranks
        found.put()

    (found,) = by_hand(grown, edit)

    assert "row 1 ranks 1 sources by other values" in found
    assert "ada" in found


@one_emulator
@pytest.mark.parametrize(("sequence", "words"), [(4, "has 4"), (5, "holds {}, not"), (6, None)])
def test_verify_compares_a_source_with_a_row_that_was_read_later(
    here: World, sequence: int, words: str | None
) -> None:
    """C5: a row that is behind, or says otherwise, is a difference; one that is ahead is none."""
    source, row = ndb.Key(Pupil, "ada"), row_key("by_grade.1.1", "1")
    known = {"by_grade.1.1": {"1": [5, {"points": 1}]}}
    marker = SourceMarker(key=marker_key(source), sequence=5, contributions=known)
    key = row_marker_key(row, source_name(source))
    held = {row: ViewRow(key=row), key: RowMarker(key=key, sequence=sequence, measures={})}

    doubt = audit.source_doubt("by_grade.1.1", source, {"1": {"points": 1}}, marker, held)

    assert (doubt is None) == (words is None)
    if doubt is not None and words is not None:
        assert words in doubt.message


def test_verify_finds_nothing_while_sources_are_saved_and_updates_wait(grown: World) -> None:
    """C5: what is under way is looked at again."""
    with grown.context():
        SCHOOL.save(grown.clients, pupil("ada", 2, 5, "x"))
        SCHOOL.delete(grown.clients, ndb.Key(Pupil, "eve"))
        BUILDS.verify(grown.clients, ByGrade, "v")
        BUILDS.verify(grown.clients, GradesBySize, "v")
    # The walks come first, and the updates after them.
    for due in grown.engine.due()[::-1]:
        grown.deliver(due.task_name)
    grown.settle()

    with grown.context():
        for view in (ByGrade, GradesBySize):
            found = BUILDS.verification(grown.clients, view, "v")
            assert (found.state, list(found.differences)) == ("finished", [])


@pytest.mark.parametrize("late_s", [1, 6, 40])
def test_verify_ends_soon_after_what_was_late(grown: World, late_s: int) -> None:
    """It says what it waits for, and looks again within as long as that took, and some seconds."""
    with grown.context():
        SCHOOL.save(grown.clients, pupil("ada", 1, 9))
    late = list(grown.engine.due())
    with grown.context():
        BUILDS.verify(grown.clients, ByGrade, "v")
    began = grown.clock.time_s

    def deliver_all_but_late() -> None:
        for due in list(grown.engine.due()):
            if due.task_name not in {each.task_name for each in late}:
                grown.deliver(due.task_name)

    while grown.clock.time_s < began + late_s:
        deliver_all_but_late()
        grown.clock.sleep(0.5)
    with grown.context():
        waits = BUILDS.verification(grown.clients, ByGrade, "v")
    grown.settle()

    with grown.context():
        found = BUILDS.verification(grown.clients, ByGrade, "v")
    assert (waits.state, waits.waiting, waits.differences) == ("running", 2, [])
    assert (found.state, found.waiting, found.differences) == ("finished", 0, [])
    assert grown.clock.time_s - began <= 2 * late_s + 8


def test_a_verification_that_was_not_begun_is_named_as_it_was_asked_for(grown: World) -> None:
    """Not by a hash, which no caller knows."""
    with grown.context(), pytest.raises(UnknownRunError, match=r"no verification 'w' of .*grade"):
        BUILDS.verification(grown.clients, ByGrade, "w")


def test_a_verification_whose_walk_is_cancelled_is_cancelled_and_another_one_verifies(
    grown: World,
) -> None:
    """Also together with one that goes on: nobody waits for what nobody does any more."""
    with grown.context():
        for view in (ByGrade, GradesBySize):
            BUILDS.verify(grown.clients, view, "v")
        running = BUILDS.verification(grown.clients, ByGrade, "v")
        [walk, *_] = ContinuationRun.query(ContinuationRun.state == RUNNING).fetch()
        runs.cancel(walk.key.id())
        views = [BUILDS.verification(grown.clients, view, "v") for view in (ByGrade, GradesBySize)]
    grown.settle()

    assert running.state == "running"
    assert sorted(found.state for found in views) == ["cancelled", "running"]
    assert Verification.of_all(views).state == "cancelled"
    assert verified(grown, BUILDS, ByGrade, "w") == verified(grown, BUILDS, GradesBySize, "w") == []


def test_verify_says_nothing_of_a_table_that_was_replaced_meanwhile(grown: World) -> None:
    """C5: its rows are gone because they have to be."""
    with grown.context():
        for view in (ByGrade, GradesBySize):
            BUILDS.verify(grown.clients, view, "v")
        held_back = {due.task_name for due in grown.engine.due()}
        BUILDS.rebuild(grown.clients, ByGrade)
    for _ in range(400):
        due = [task for task in grown.engine.due() if task.task_name not in held_back]
        if not due:
            with grown.context():
                if not busy(SCHOOL, ByGrade) and not busy(SCHOOL, GradesBySize):
                    break
            grown.clock.sleep(1)
            continue
        grown.deliver(due[0].task_name)
    grown.settle()

    with grown.context():
        assert SCHOOL.catalog().live(GradesBySize) == "grades_by_size.1.2"
        for view in (ByGrade, GradesBySize):
            found = BUILDS.verification(grown.clients, view, "v")
            assert (found.state, list(found.differences)) == ("finished", [])


@pytest.mark.parametrize(
    ("own", "below", "error"),
    [(1, 1, RefusedItemError), (2, 1, SkippedItemError), (1, 2, SkippedItemError)],
)
def test_a_difference_counts_while_its_table_and_the_one_below_are_read(
    monkeypatch: pytest.MonkeyPatch, own: int, below: int, error: type[ItemError]
) -> None:
    """C5: a view of a view is compared with rows, which go when the table below is replaced."""
    tables = {GradesBySize: f"grades_by_size.1.{own}", ByGrade: f"by_grade.1.{below}"}
    catalog: Any = SimpleNamespace(read=lambda: SimpleNamespace(live=tables.__getitem__))
    verifier = Verifier(SCHOOL._internals.definitions, catalog, "default")
    doubts = {"row": audit.Doubt("row is gone", 1)}
    monkeypatch.setattr(verifier, "_audit", lambda walk, keys: doubts)
    walk = Walk(GradesBySize.name, "grades_by_size.1.1", ByGrade.name, "by_grade.1.1")

    clients: Any = None
    [found] = verifier._check(clients, walk, ["row"])

    assert type(found) is error


def test_a_difference_counts_when_it_is_found_twice_and_nothing_is_in_flight() -> None:
    """C5: what changes between two looks is being written, and is looked at again."""
    found, changed = audit.Doubt("row 1 is wrong", 1), audit.Doubt("row 1 is wrong", 2)
    in_flight = audit.Doubt("row 1 is wrong", 1, is_pending=True)

    assert isinstance(audit.compare(found, found), RefusedItemError)
    for first, second in ((found, changed), (in_flight, found), (found, in_flight)):
        assert isinstance(audit.compare(first, second), DeferredItemError)
    assert audit.compare(None, found) is None
    assert audit.compare(found, None) is None
