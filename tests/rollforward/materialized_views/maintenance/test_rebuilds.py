"""Rebuilds: a view's table is made beside the one that is read, and swapped in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations.jobs import RefusedItemError
from rollforward.continuations.sources import EntitySource, Slice, Span
from rollforward.datastore.transactions import transact
from rollforward.flask import recovery
from rollforward.materialized_views.entities import ViewRow, row_key
from rollforward.materialized_views.maintenance.rebuild import NOT_BUILT, BuildStatus, sweep_all
from rollforward.materialized_views.maintenance.walks import BACKFILL, Walk
from rollforward.materialized_views.reader import ViewReader
from rollforward.materialized_views.updating.transport import UpdateTransport
from rollforward.testing.injection import CRASH_AFTER, Crash
from rollforward.testing.world import SWEPT_EVERY_S
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    NOON,
    Number,
    Numbers,
    busy,
    counts,
    heal,
    in_a_thread,
    number,
    one_emulator,
    played,
    rebuild,
    row_markers,
    rows_here,
)
from tests.rollforward.materialized_views.student_views import (
    BUILDS,
    SCHOOL,
    ByGrade,
    ByHouse,
    GradesBySize,
    Pupil,
    Tutor,
    differences,
    facts,
    pupil,
)


def without_prints(rows: dict[Any, Any]) -> dict[Any, Any]:
    """Return rows without their fingerprints, which tell of sequences, too."""
    return {name: (counted, sums) for name, (counted, sums, _) in rows.items()}


def test_a_rebuilt_view_is_the_same_and_its_old_table_is_gone(world: World) -> None:
    """C5: the same bytes; and the view that stands on it is rebuilt, too."""
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 0.1), pupil("bob", 1, 0.2, "x"))
        SCHOOL.save(world.clients, Tutor(id="t", grade=1))
    world.settle()
    before = [facts(world, view) for view in (ByGrade, GradesBySize)]

    table = rebuild(world)

    after = [facts(world, view) for view in (ByGrade, GradesBySize)]
    assert table == "by_grade.1.2"
    assert [without_prints(each) for each in after] == [without_prints(each) for each in before]
    with world.context():
        catalog = SCHOOL.catalog()
        assert catalog.live(ByGrade) == table
        assert catalog.live(GradesBySize) == "grades_by_size.1.2"
        assert {row.key.id().partition(":")[0] for row in rows_here(ViewRow)} == {
            "by_grade.1.2",
            "by_house.1.1",
            "grades_by_size.1.2",
        }
        assert not row_markers("by_grade.1.1")
        assert not row_markers("grades_by_size.1.1")
        assert differences() == []


def test_a_build_over_unseen_sources_sends_nothing_to_the_table_that_it_replaces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: the tables of other views get the same sources."""
    with world.context():
        ndb.put_multi([pupil("ada", 1, 1.0), pupil("bob", 1, house="x"), Tutor(id="t", grade=1)])
    sent, send = set(), UpdateTransport.send

    def noting(self: UpdateTransport, clients: Any, view: Any, tag: str, part: Any) -> str:
        sent.add(tag.partition(":")[0])
        return send(self, clients, view, tag, part)

    monkeypatch.setattr(UpdateTransport, "send", noting)

    rebuild(world)

    with world.context():
        assert {"by_grade.1.2", "by_house.1.1", "grades_by_size.1.2"} <= sent
        assert "by_grade.1.1" not in sent
        assert (counts(world), counts(world, ByHouse)) == ({1: 2}, {"x": 1})
        assert differences() == []


# What a reader sees of a table; the last two of an update that waits.
LOOKS: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "a view": (lambda world: counts(world), {1: 1}),
    "a row": (lambda world: getattr(SCHOOL.row(ByGrade, 1), "count", None), 1),
    "the top": (lambda world: [n for _, n in SCHOOL.top(ByGrade, 1, "points")], [9.0]),
    "different values": (lambda world: SCHOOL.distinct(ByGrade, 1, "house"), 1),
    "members": (lambda world: len(SCHOOL.members(ByGrade, 1, Pupil)), 1),
    "a row's freshness": (
        lambda world: SCHOOL.freshness(world.clients, ByGrade, 1).newest_s is None,
        False,
    ),
}
LOOKS_AT_UPDATES: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "what waits": (lambda world: SCHOOL.is_waiting(ByGrade), True),
    "updates": (lambda world: len(SCHOOL.waiting(world.clients, ByGrade)), 1),
}


@one_emulator
@pytest.mark.parametrize("is_built", [False, True], ids=["before the build", "in the build"])
def test_a_reader_that_is_held_up_sees_a_table_that_is_whole(
    here: World, monkeypatch: pytest.MonkeyPatch, is_built: bool
) -> None:
    """C5: it knows which table is read, and then that one is replaced and dropped."""
    SCHOOL.save(here.clients, pupil("ada", 1, 9, "x"))
    here.settle()
    before = SCHOOL.catalog()
    BUILDS.rebuild(here.clients, ByGrade)
    known = SCHOOL.catalog() if is_built else before
    in_a_thread(lambda: here.heal(lambda: not busy(SCHOOL, ByGrade)))
    catalogs: list[Any] = []
    now = ViewReader.catalog
    monkeypatch.setattr(
        ViewReader, "catalog", lambda self: catalogs.pop() if catalogs else now(self)
    )

    def see(looks: Mapping[str, tuple[Callable[[Any], Any], Any]]) -> None:
        for of, (look, expected) in looks.items():
            catalogs.append(known)
            assert look(here) == expected, of
            assert catalogs == [], of

    see(LOOKS)
    SCHOOL.save(here.clients, pupil("bob", 1))
    see(LOOKS_AT_UPDATES)


def test_a_rebuild_pressed_twice_is_one(here: World) -> None:
    """Both return the same table."""
    SCHOOL.save(here.clients, pupil("ada", 1))

    tables = [BUILDS.rebuild(here.clients, ByGrade) for _ in range(2)]

    status = BUILDS.rebuilding(here.clients, ByGrade)
    assert tables == ["by_grade.1.2"] * 2
    assert status is not None
    assert (status.table, status.phase) == ("by_grade.1.2", BACKFILL)


@one_emulator
def test_a_table_is_not_swapped_in_before_its_walks_have_ended(here: World) -> None:
    """C5: the commit itself looks, whatever its caller has seen before."""
    SCHOOL.save(here.clients, *[pupil(f"p{n}", n % 3 + 1, n, "x") for n in range(6)])
    here.settle()
    table = BUILDS.rebuild(here.clients, ByGrade)

    is_swapped = transact(lambda: BUILDS._tables.swap(ByGrade, table))

    assert not is_swapped
    assert SCHOOL.catalog().live(ByGrade) != table
    here.settle()
    assert SCHOOL.catalog().live(ByGrade) == table
    assert differences() == []


def test_a_rebuild_expects_as_many_sources_as_are_in_the_table_that_is_read(here: World) -> None:
    """In its own rows, and not in those of the views beside it."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1, "x"), pupil("bob", 1, 1, "y"), pupil("eve", 2))
    here.settle()

    statuses = []
    for view in (ByGrade, ByHouse):
        BUILDS.rebuild(here.clients, view)
        statuses.append(BUILDS.rebuilding(here.clients, view))

    assert statuses == [
        BuildStatus("by_grade.1.2", BACKFILL, done=0, expected=3, failed=0),
        BuildStatus("by_house.1.2", BACKFILL, done=0, expected=2, failed=0),
    ]


@one_emulator
def test_a_late_walk_over_replaced_rows_brings_nothing_back(world: World) -> None:
    """C5: the backfill of a build that was given up walks over a table that was replaced."""
    assert rebuild(world) == "by_grade.1.2"
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2))
        world.settle()
        stale = ViewRow(
            key=row_key("by_grade.1.1", "1"),
            counts={"Pupil": 9},
            sums={},
            fingerprint="0",
            applied=NOON,
        )
        stale.put()
        walk = Walk("grades_by_size", "grades_by_size.1.2", "by_grade", "by_grade.1.1")
        answers = [
            *transact(lambda: BUILDS.backfill.apply(world.clients, walk, [stale.key])),  # type: ignore[misc]
            *BUILDS.catch_up.check(world.clients, walk, [stale.key] * 2),  # type: ignore[misc]
        ]
        stale.key.delete()
        world.settle()

        assert [str(answer) for answer in answers] == [NOT_BUILT] * 3
        assert {type(answer) for answer in answers} == {RefusedItemError}
        assert differences() == []


def test_a_rebuild_goes_on_while_sources_come_move_and_go(world: World) -> None:
    """C5: after each delivery something else happens."""
    with world.context():
        SCHOOL.save(world.clients, *[pupil(f"p{n}", n % 3 + 1, n, "x") for n in range(12)])
        world.settle()
        BUILDS.rebuild(world.clients, ByGrade)
        BUILDS.rebuild(world.clients, ByHouse)
        for n in range(15):
            match n % 3:
                case 0:
                    SCHOOL.save(world.clients, pupil(f"p{n % 12}", n % 4 + 1, n, "y"))
                case 1:
                    tutor = Tutor(id="t", grade=n % 4)
                    SCHOOL.save(world.clients, pupil(f"q{n}", 1, n, "z"), tutor)
                case _:
                    SCHOOL.delete(world.clients, ndb.Key(Pupil, f"p{n % 12}"))
            for due in world.engine.due()[:2]:
                world.deliver(due.task_name)
    heal(world, BUILDS)

    with world.context():
        assert SCHOOL.catalog().live(ByGrade) == "by_grade.1.2"
        assert differences() == []
        for view in SCHOOL.views.values():
            BUILDS.verify(world.clients, view, "v")
    world.settle()
    with world.context():
        for view in SCHOOL.views.values():
            assert BUILDS.verification(world.clients, view, "v").differences == []


@one_emulator
@pytest.mark.parametrize("change", ["deleted", "moved"])
def test_a_source_that_changes_while_its_page_is_built_is_built_as_it_is_then(
    world: World, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """C5: between the reading of a page and its transaction a source goes, or moves."""
    with world.context():
        SCHOOL.save(world.clients, *[pupil(f"p{n}", n % 3 + 1, n, "x") for n in range(6)])
    world.settle()
    read, changed = EntitySource.read, []

    def save() -> None:
        with world.context():
            if change == "deleted":
                SCHOOL.delete(world.clients, ndb.Key(Pupil, "p3"))
            else:
                SCHOOL.save(world.clients, pupil("p3", 9, 3, "x"))

    def overtaken(source: EntitySource, span: Span, size: int) -> Slice[Any]:
        page = read(source, span, size)
        if "p3" in [key.id() for key in page.items] and not changed:
            changed.append(page)
            in_a_thread(save)
        return page

    monkeypatch.setattr(EntitySource, "read", overtaken)
    with world.context():
        table = BUILDS.rebuild(world.clients, ByGrade)
    heal(world, BUILDS)

    assert changed
    with world.context():
        rows = {1: 1, 2: 2, 3: 2} | ({9: 1} if change == "moved" else {})
        assert (SCHOOL.catalog().live(ByGrade), counts(world)) == (table, rows)
        assert differences() == []


@one_emulator
def test_a_build_that_failed_is_begun_anew(services: Services) -> None:
    """C5: `rebuild` again, after the source was fixed; the table it gave up goes."""
    play = played(services, [Numbers])
    with play as (world, views):
        views.save(world.clients, number("good", 1))
        Number(id="bad", row="all", said={"m": [1]}).put()
        world.settle()
        play.builds.rebuild(world.clients, Numbers)
        world.settle()
        status = play.builds.rebuilding(world.clients, Numbers)
        assert status is not None
        assert (status.phase, status.failed) == ("failed", 1)
        assert counts(world, Numbers, views) == {"all": 1}

        views.save(world.clients, number("bad", 2))
        tables = [play.builds.rebuild(world.clients, Numbers) for _ in range(2)]
        world.settle()

        assert tables == ["numbers.1.3"] * 2
        assert counts(world, Numbers, views) == {"all": 2}
        assert not busy(views, Numbers)
        assert differences(views) == []


@one_emulator
def test_a_build_that_failed_goes_on_when_its_walk_is_retried(services: Services) -> None:
    """C5: what failed is done again, and not the whole table."""
    play = played(services, [Numbers])
    with play as (world, views):
        views.save(world.clients, number("good", 1))
        Number(id="bad", row="all", said={"m": [1]}).put()
        world.settle()
        table = play.builds.rebuild(world.clients, Numbers)
        world.settle()
        number("bad", 2).put()
        run_id = Walk("numbers", table, Number._get_kind()).run_id(BACKFILL)
        jobs = {job.name: job for job in play.builds.jobs}
        continuations.retry_failed(world.clients, jobs, run_id)
        world.settle()

        assert views.catalog().live(Numbers) == table
        assert counts(world, Numbers, views) == {"all": 2}
        assert not busy(views, Numbers)
        assert differences(views) == []


@one_emulator
def test_the_sweep_goes_on_after_a_crash_behind_the_first_commit(world: World) -> None:
    """C5: the table is in the catalog, and the worker that put it there died."""
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1))
    world.settle()
    world.plan.reset(CRASH_AFTER, next_call="Commit")
    with world.clients.context(), world.plan.watched(), pytest.raises(Crash):
        BUILDS.rebuild(world.clients, ByGrade)
    world.bury()
    with world.context():
        assert SCHOOL.catalog().building(ByGrade) == "by_grade.1.2"

    world.heal(lambda: not busy(SCHOOL, ByGrade))

    with world.context():
        assert SCHOOL.catalog().live(ByGrade) == "by_grade.1.2"
        assert differences() == []


@one_emulator
@pytest.mark.parametrize("what", ["save", "rebuild"])
def test_a_worker_that_starts_goes_on_with_what_a_dead_one_left(world: World, what: str) -> None:
    """C1, C5: it died behind its first commit; no sweep of cron is needed."""
    world.flush()
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1))
    world.settle()
    act: dict[str, Callable[[], object]] = {
        "save": lambda: SCHOOL.save(world.clients, pupil("ada", 2)),
        "rebuild": lambda: BUILDS.rebuild(world.clients, ByGrade),
    }
    world.plan.reset(CRASH_AFTER, next_call="Commit")
    with world.clients.context(), world.plan.watched(), pytest.raises(Crash):
        act[what]()
    assert "Commit" in world.plan.fired
    world.bury()
    began = world.clock.time_s

    with world.context():
        recovery.recover(world.clients, world.registry)
    world.settle(patience_s=SWEPT_EVERY_S)

    assert world.clock.time_s - began <= 10
    with world.context():
        assert counts(world) == {2 if what == "save" else 1: 1}
        assert not busy(SCHOOL, ByGrade)
        assert SCHOOL.catalog().live(ByGrade) == f"by_grade.1.{1 if what == 'save' else 2}"
        assert differences() == []


@pytest.mark.parametrize("raised", [ValueError("a bug"), rpc_errors.ServiceUnavailable("away")])
def test_a_group_whose_sweep_fails_stops_none_behind_it(raised: Exception) -> None:
    """C5: each group is swept; what failed is raised afterwards, so that cron shows it."""
    swept: list[str] = []

    def group(name: str) -> Any:
        def sweep(clients: Any) -> int:
            swept.append(name)
            if name == "broken":
                raise raised
            return 1

        return SimpleNamespace(sweep=sweep, views=SimpleNamespace(group=name))

    groups = [group("a"), group("broken"), group("b")]
    with pytest.raises(type(raised)):
        sweep_all(None, groups)

    assert swept == ["a", "broken", "b"]
