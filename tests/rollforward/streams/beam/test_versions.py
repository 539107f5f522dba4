"""States that one version of the code has written, and another one reads; without Beam.

A cell on Beam is stored as text, so what a later version of the pipeline reads of it is what an
update of a job on Dataflow reads, and what a move brings along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from rollforward.streams import Computation, Context, Pipeline, Record, Timer
from rollforward.streams.beam.cell import Cell, cell_of, cell_text
from rollforward.streams.beam.key_step import KeyStep, Outcome
from rollforward.streams.beam.support import UntranslatableError, check_translatable
from rollforward.streams.model.bundle import KeyedRecord
from rollforward.streams.model.computation import KeyOf
from rollforward.streams.model.json_text import encoder
from rollforward.streams.moving.file_format import Header
from tests.rollforward.streams.beam.pipelines import MINUTE_MS, HitsPerMinute, by_key

pytestmark = pytest.mark.fast

NAME = HitsPerMinute.name
_encode = encoder(allow_nan=False)


class Hits2(Computation):
    """Version 2 of the hits, which has its windows as a list of pairs."""

    name = NAME
    version = 2
    reads: Sequence[int] = (1,)
    inputs: Mapping[str, KeyOf] = {"in": by_key}
    outputs: Sequence[str] = ("hits",)

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        assert version == 1
        return {"pairs": sorted([start, hits] for start, hits in state["windows"].items())}

    def record(self, ctx: Context, record: Record) -> None:
        start = str(record.timestamp_ms // MINUTE_MS * MINUTE_MS)
        pairs = dict(ctx.state.list("pairs").get())
        pairs[start] = pairs.get(start, 0) + 1
        ctx.state.list("pairs").set(sorted(map(list, pairs.items())))
        ctx.set_timer(start, int(start) + MINUTE_MS)

    def timer(self, ctx: Context, timer: Timer) -> None:
        pairs = dict(ctx.state.list("pairs").get())
        hits = pairs.pop(timer.tag)
        ctx.state.list("pairs").set(sorted(map(list, pairs.items())))
        ctx.produce("hits", {"k": ctx.key, "minute": int(timer.tag), "hits": hits})


class Forgetful(Hits2):
    """Version 2 without a word about version 1."""

    name = NAME
    reads = ()


TIMES = [1_000, 2_000, 61_000, 3_000, 62_000, 121_000]


def _stored(outcome: Outcome) -> Cell:
    """Return a cell as a runner has it between two calls."""
    return cell_of(cell_text(outcome.cell))


def _records(step: KeyStep, cell: Cell, times: Iterable[int]) -> Cell:
    for at in times:
        record = KeyedRecord("a", {"k": "a"}, at, "in", 0, text=_encode({"k": "a"}))
        cell = _stored(step.record(cell, record, 0, 0))
    return cell


def _fired(step: KeyStep, cell: Cell) -> Outcome:
    return step.fire("a", cell, 200_000, 0)


def _written(outcome: Outcome) -> list[str]:
    return [one.text for one in outcome.productions]


@pytest.mark.parametrize("cut", range(len(TIMES) + 1))
def test_a_later_version_goes_on_with_the_states_of_an_earlier_one(cut: int) -> None:
    old, new = KeyStep(HitsPerMinute()), KeyStep(Hits2())
    cell = _records(old, Cell(), TIMES[:cut])
    outcome = _fired(new, _records(new, cell, TIMES[cut:]))
    assert not outcome.failures
    assert _written(outcome) == _written(_fired(old, _records(old, Cell(), TIMES)))
    assert len(outcome.productions) == 3


def test_a_version_that_does_not_read_an_earlier_one_makes_dead_letters() -> None:
    """Nothing is lost without a word, and the state stays as it is."""
    step = KeyStep(Forgetful())
    cell = _records(KeyStep(HitsPerMinute()), Cell(), TIMES[:2])
    record = KeyedRecord("a", {"k": "a"}, 3_000, "in", 0, text=_encode({"k": "a"}))
    outcome = step.record(cell, record, 0, 0)
    assert ["does not read states of version 1" in one.error for one in outcome.failures] == [True]
    assert outcome.cell.state.text == cell.state.text


def _header(**fields: Any) -> Header:
    known = {"watermarks": {NAME: 1_000}, "versions": {NAME: [1]}}
    return Header("cut-1", "judged", sources=[], **{**known, **fields})


@pytest.mark.parametrize(
    ("code", "fields", "message"),
    [
        (Forgetful, {}, f"{NAME} does not declare that it reads states of versions [1]"),
        (Hits2, {"watermarks": {}}, f"only one of it and the export has {NAME}"),
        (Hits2, {"watermarks": {NAME: 1, "gone": 1}}, "only one of it and the export has gone"),
        (Hits2, {"due": [NAME]}, f"{NAME} had timers that were due"),
        (Hits2, {"codecs": ["packed-1"]}, "the export has records of the codec 'packed-1'"),
    ],
)
def test_an_export_that_does_not_fit_is_refused(
    code: type[Computation], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UntranslatableError) as refused:
        check_translatable(Pipeline("judged", code), ["in"], header=_header(**fields))
    assert message in str(refused.value)


@pytest.mark.parametrize("code", [HitsPerMinute, Hits2])
def test_an_export_of_a_version_that_the_code_reads_is_accepted(code: type[Computation]) -> None:
    check_translatable(Pipeline("judged", code), ["in"], header=_header())
