"""Pictures of a run: a dot for each item, and a curve of those that have ended."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from rollforward.console.pages.run_pictures import (
    CURVE_HEIGHT,
    MAX_CELLS,
    MIN_WIDTH,
    WIDTH,
    curve_of,
    dots_of,
    lanes_of,
)
from rollforward.tasks.runs import (
    OUTCOMES,
    Run,
    RunDetails,
    RunPart,
    RunSpan,
    RunState,
    named_run,
)

pytestmark = pytest.mark.fast

BEGUN = datetime.datetime.fromtimestamp(4, datetime.UTC)


def details(*items: str, expected: int = 0, state: RunState = "running") -> RunDetails:
    """A run whose parts have these items."""
    counts = dict.fromkeys(OUTCOMES, 0)
    run = Run("p", "r", "n", state, "{}", BEGUN, None, counts, expected)
    parts = [
        RunPart(str(number), text, 1, BEGUN + datetime.timedelta(seconds=1 + number))
        for number, text in enumerate(items)
    ]
    return RunDetails(run, parts)


def test_each_item_is_a_dot_and_those_not_read_yet_are_there() -> None:
    """As long as they fit; the strokes of a row add up to it."""
    dots = dots_of(details("ddf", "d", expected=100))

    assert dots is not None
    drawn = {name: path.count("M") for name, path in dots.paths.items()}
    assert (drawn["done"], drawn["failed"], dots.per_cell) == (2, 1, 1)
    lengths = [
        float(part.partition("M")[0])
        for path in dots.paths.values()
        for part in path.split("h")[1:]
    ]
    assert sum(lengths) == pytest.approx(100 * dots.cell, abs=0.1)
    begins = {name: path.partition(" ")[0] for name, path in dots.paths.items()}
    assert begins["done"] == "M0.00"
    assert begins["failed"] == f"M{2 * dots.cell:.2f}"
    assert dots.cell * 23 == pytest.approx(WIDTH)  # Rows of 23 are about as high as a curve.


def test_a_square_of_many_items_shows_the_worst() -> None:
    """A failed item is seen among a hundred thousand."""
    dots = dots_of(details("d" * 99_999 + "f"))

    assert dots is not None
    assert dots.per_cell == 5
    assert dots.paths["failed"].count("M") == 1


def test_items_of_parts_that_are_left_out_are_not_drawn_as_waiting() -> None:
    """A long run has more parts than are read, and none once they are deleted."""
    some = dataclasses.replace(details("dd", "d", expected=100), has_all_parts=False)
    none = dataclasses.replace(details(expected=100, state="done"), has_all_parts=False)
    dots = dots_of(some)

    assert dots is not None
    assert (dots.items, set(dots.paths)) == (3, {"done"})
    assert dots_of(none) is None


def test_a_run_of_any_length_is_drawn_by_as_many_cells() -> None:
    """Ten billion items cost no more than a million."""
    dots = dots_of(details("df", expected=10**10))

    assert dots is not None
    assert dots.per_cell == 10**10 // MAX_CELLS
    assert set(dots.paths) == {"failed", "waiting"}


def test_the_curve_rises_to_all_items_that_have_ended() -> None:
    """From the start, below the top, never outside; a run that goes on has it go on."""
    curve = curve_of(details("dd", "d", "dr", expected=5), now_s=14.0)

    assert curve is not None
    points = [tuple(map(float, point.split(","))) for point in curve.points.split()]
    assert curve.seconds == 10.0
    assert (points[0], points[-1]) == ((0.0, CURVE_HEIGHT), (WIDTH, points[-2][1]))
    assert points[-1][1] == pytest.approx(CURVE_HEIGHT * (1 - 0.96 * 4 / 5), abs=0.1)
    assert all(0 <= x <= WIDTH and 0 < y <= CURVE_HEIGHT for x, y in points)
    # The parts got on one, two and three seconds after the start, of the ten until now.
    assert [x / WIDTH for x, _ in points[1::2]] == pytest.approx([0.1, 0.2, 0.3, 1.0])


@pytest.mark.parametrize("has_all_parts", [True, False])
def test_parts_without_items_are_a_level_curve(has_all_parts: bool) -> None:
    """As of a run over dead letters of a time that none of its first pages has."""
    shown = dataclasses.replace(details("", "", ""), has_all_parts=has_all_parts)
    curve = curve_of(shown, now_s=14.0)

    assert curve is not None
    assert {point.partition(",")[2] for point in curve.points.split()} == {f"{CURVE_HEIGHT:.1f}"}


def span(began_s: float, ended_s: float | None, outcome: str = "done") -> RunSpan:
    """A step of a run that began at BEGUN."""
    ended = None if ended_s is None else BEGUN + datetime.timedelta(seconds=ended_s)
    return RunSpan("s", outcome, BEGUN + datetime.timedelta(seconds=began_s), ended)


def test_steps_are_bars_on_one_axis_up_to_now() -> None:
    """A step of a millisecond is seen beside one of a month, and none ends before it began."""
    spans = [span(0, 0.001), span(1, 40), span(41, 40.5), span(50, None, "waiting")]
    drawn = lanes_of(dataclasses.replace(details("ddd."), spans=spans), now_s=104.0)

    assert drawn is not None
    assert (drawn.seconds, drawn.mark(0.5)) == (100.0, 50.0)
    assert [lane.width for lane in drawn.lanes] == pytest.approx([MIN_WIDTH, 390, MIN_WIDTH, 500])
    assert [lane.seconds for lane in drawn.lanes] == pytest.approx([0.001, 39, 0, 50])
    assert all(0 <= lane.x <= WIDTH - lane.width for lane in drawn.lanes)
    assert dots_of(dataclasses.replace(details("ddd."), spans=spans)) is None


def test_a_single_step_of_no_time_is_a_bar() -> None:
    """Its axis has a length; a run without steps has no axis."""
    drawn = lanes_of(dataclasses.replace(details("d"), spans=[span(0, 0)]), now_s=4.0)

    assert drawn is not None
    assert drawn.lanes[0].width == MIN_WIDTH
    assert lanes_of(details("d"), now_s=4.0) is None


def test_what_has_no_items_has_no_pictures() -> None:
    """A queue, for example."""
    queue = RunDetails(named_run("pull-queues", "work"))

    assert (dots_of(queue), curve_of(queue, 14.0)) == (None, None)
    assert curve_of(details("ddd", "d"), 14.0) is None  # Two steps are no curve.
