"""The catch-up of a rebuild: it misses no source that waits, and does not read all that do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.continuations.entities import ContinuationRun, run_key
from rollforward.materialized_views.definitions import identity
from rollforward.materialized_views.entities import RowMarker, SourceMarker, marker_key
from rollforward.materialized_views.maintenance import catch_up
from rollforward.materialized_views.maintenance.audit import row_marker_of
from rollforward.materialized_views.maintenance.catch_up import DRAWN, MANY, missing_updates
from rollforward.materialized_views.maintenance.walks import CATCH_UP, CONFIRM, Walk
from rollforward.materialized_views.updating import transport
from rollforward.outbox.entities import OutboxTask, rows_of_tags
from rollforward.runtime import naive_utc
from tests.infra.world import World
from tests.rollforward.materialized_views.harness import as_work_items, one_emulator
from tests.rollforward.materialized_views.student_views import SCHOOL, pupil

TABLE = "by_grade.1.1"
WALK = Walk("by_grade", TABLE, "Pupil")
COUNT, DRAWS = 40, 10
# A page reads two runs, and of each drawn source two markers.
READS_RUNS = 2
READS_DRAWN = READS_RUNS + 2 * DRAWN
pytestmark = one_emulator


def saved(here: World, count: int = COUNT) -> list[Any]:
    """Save pupils whose updates wait; return their identities."""
    pupils = [pupil(f"p{n:02}", n % 4) for n in range(count)]
    SCHOOL.save(here.clients, *pupils)
    return [identity(one.key) for one in pupils]


def begin_walk(here: World, step: str = CATCH_UP) -> None:
    """Begin a walk a second after all that was saved."""
    here.clock.sleep(1)
    started = naive_utc(here.clients.clock.now())
    key = run_key(WALK.run_id(step))
    ContinuationRun(key=key, job="j", args="{}", spans=[], page_size=100, started=started).put()
    here.clock.sleep(1)


def apply(sources: Sequence[Any]) -> None:
    """Let rows hold what some sources contribute, and nothing else."""
    for source in sources:
        contributions = marker_key(source).get().contributions[TABLE]
        for row, (sequence, measures) in contributions.items():
            key = row_marker_of(TABLE, row, source)
            RowMarker(key=key, sequence=sequence, measures=measures).put()


def reads(here: World, sources: Sequence[Any]) -> tuple[list[bool], int]:
    """Return which sources wait, and how many entities were read for that."""
    before = here.clients.meter.cost()
    waiting = catch_up.are_waiting(here.clients, WALK, sources)
    return waiting, (here.clients.meter.cost() - before).reads


def test_a_page_that_waits_for_the_folds_is_drawn_from(here: World) -> None:
    sources = saved(here)
    begin_walk(here)

    assert reads(here, sources) == ([True] * COUNT, READS_DRAWN)


def test_a_page_that_is_up_to_date_is_read_once(here: World) -> None:
    sources = saved(here)
    begin_walk(here)
    apply(sources)

    assert reads(here, sources) == ([False] * COUNT, READS_DRAWN + 2 * COUNT)


@pytest.mark.parametrize("last", [0, 17, COUNT - 1])
def test_the_last_source_that_waits_is_not_missed(here: World, last: int) -> None:
    sources = saved(here)
    begin_walk(here)
    apply([source for source in sources if source != sources[last]])

    for _ in range(DRAWS):
        waiting, _ = reads(here, sources)
        assert waiting == [number == last for number in range(COUNT)]


def test_no_draw_misses_a_source_that_waits(here: World) -> None:
    """However many wait, and whichever are drawn."""
    sources = saved(here)
    begin_walk(here)
    for applied in range(0, COUNT + 1, 5):
        apply(sources[:applied])
        for _ in range(DRAWS):
            waiting, _ = reads(here, sources)
            assert waiting in ([True] * COUNT, [n >= applied for n in range(COUNT)])


def test_a_source_behind_its_last_change_waits(here: World) -> None:
    """Its row holds an earlier one."""
    sources = saved(here, 1)
    begin_walk(here)
    apply(sources)
    assert reads(here, sources)[0] == [False]

    SCHOOL.save(here.clients, pupil("p00", 0, 7.0))

    assert reads(here, sources)[0] == [True]


@pytest.mark.parametrize("step", [CATCH_UP, CONFIRM])
def test_sources_that_are_saved_again_and_again_hold_no_other_up(here: World, step: str) -> None:
    """They wait for what was sent after the walk began: of it there is always something."""
    sources = saved(here)
    apply(sources)
    begin_walk(here, CATCH_UP)
    if step == CONFIRM:
        SCHOOL.save(here.clients, *[pupil(f"p{n:02}", n % 4, 1.0) for n in range(COUNT)])
        apply(sources)
        begin_walk(here, CONFIRM)
    hot = range(COUNT - 4)
    SCHOOL.save(here.clients, *[pupil(f"p{n:02}", n % 4, 5.0) for n in hot])

    for _ in range(DRAWS):
        waiting, _ = reads(here, sources)
        assert waiting == [number in hot for number in range(COUNT)]


def test_a_confirming_walk_waits_for_what_was_sent_before_itself(here: World) -> None:
    """Not only for what was sent before the catch-up."""
    sources = saved(here)
    apply(sources)
    begin_walk(here, CATCH_UP)
    SCHOOL.save(here.clients, *[pupil(f"p{n:02}", n % 4, 5.0) for n in range(COUNT)])
    begin_walk(here, CONFIRM)

    assert reads(here, sources) == ([True] * COUNT, READS_DRAWN)


def test_a_small_page_is_read_at_once(here: World) -> None:
    sources = saved(here, DRAWN)
    begin_walk(here)

    assert reads(here, sources) == ([True] * DRAWN, READS_DRAWN)


def test_a_confirming_walk_reads_no_source_while_no_update_waits(here: World) -> None:
    """The catch-up reads them all the same: that they are held was not looked at before."""
    sources = saved(here)
    here.settle()
    begin_walk(here)
    assert reads(here, sources) == ([False] * COUNT, READS_DRAWN + 2 * COUNT)

    begin_walk(here, CONFIRM)

    assert reads(here, sources) == ([False] * COUNT, READS_RUNS)


@pytest.mark.parametrize("is_of_old", [False, True], ids=["an outbox row", "a work item"])
def test_a_confirming_walk_reads_its_sources_while_an_update_waits(
    here: World, monkeypatch: pytest.MonkeyPatch, is_of_old: bool
) -> None:
    """Whichever way it travels; one of another table is none."""
    sources = saved(here)
    here.settle()
    begin_walk(here)
    if is_of_old:
        as_work_items(monkeypatch, SCHOOL.views.values())
    SCHOOL.save(here.clients, pupil("p17", 1, 7.0))
    begin_walk(here, CONFIRM)

    waiting, _ = reads(here, sources)
    assert waiting == [number == 17 for number in range(COUNT)]


def test_a_confirming_walk_waits_for_no_update_of_another_table(here: World) -> None:
    sources = saved(here)
    here.settle()
    begin_walk(here)
    SCHOOL.save(here.clients, pupil("p17", 1, house="x"))
    begin_walk(here, CONFIRM)
    tags = [row.tag for row in OutboxTask.query() if row.tag.startswith("by_house.")]
    assert tags
    for row in OutboxTask.query().fetch():
        if row.tag not in tags:
            row.key.delete()

    assert reads(here, sources) == ([False] * COUNT, READS_RUNS)


def test_a_source_whose_update_is_unknown_waits_and_holds_no_other_up(here: World) -> None:
    """An earlier version of the app notes no outbox rows."""
    sources = saved(here)
    begin_walk(here)
    apply(sources[:1])
    markers = ndb.get_multi([marker_key(source) for source in sources])
    for marker in markers:
        assert isinstance(marker, SourceMarker)
        marker.sent = None
        marker.put()

    assert reads(here, sources)[0] == [False] + [True] * (COUNT - 1)
    assert missing_updates(TABLE, sources[:2]) == [[], [""]]


def draw_for_all(clients: Any, walk: Walk, sources: Sequence[Any]) -> list[bool]:
    """Planted: what holds of the sources that were drawn holds of all."""
    drawn = clients.random.sample(sources, DRAWN)
    return [any(missing_updates(walk.table, drawn))] * len(sources)


def behind_however_new(clients: Any, walk: Walk, sources: Sequence[Any], began: object) -> bool:
    """Planted: what was sent after the walk began counts, too."""
    drawn = missing_updates(walk.table, clients.random.sample(sources, DRAWN))
    return sum(map(bool, drawn)) >= MANY


@pytest.mark.parametrize("is_of_old", [False, True], ids=["an outbox row", "a work item"])
def test_a_look_that_misses_what_waits_is_found(
    here: World, monkeypatch: pytest.MonkeyPatch, is_of_old: bool
) -> None:
    if is_of_old:  # Planted: outbox rows alone are looked for.
        monkeypatch.setattr(
            transport, "packs_with_tag_prefix", lambda prefix: rows_of_tags("none:")
        )
    else:
        monkeypatch.setattr(catch_up, "has_pending_rows", lambda table: False)
    with pytest.raises(AssertionError):
        test_a_confirming_walk_reads_its_sources_while_an_update_waits(here, monkeypatch, is_of_old)


def test_draws_that_stand_for_all_are_found(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "are_waiting", draw_for_all)
    with pytest.raises(AssertionError):
        test_no_draw_misses_a_source_that_waits(here)


def test_draws_without_a_time_are_found(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "_has_backlog", behind_however_new)
    with pytest.raises(AssertionError):
        test_sources_that_are_saved_again_and_again_hold_no_other_up(here, CATCH_UP)
