"""What must hold of any pipeline: after each commit, and at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rollforward.streams.model.key_state import SlabBody
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.model.slots import slot_of
from rollforward.streams.operators.fused import Fused
from rollforward.streams.storage import state_store
from rollforward.streams.storage.remote_calls import Commit, Key, StoredRow
from rollforward.streams.storage.schema import (
    CHUNK,
    DEAD,
    HEAD,
    IDS,
    INTERVAL,
    LARGE,
    SLAB,
    SOURCE,
    Head,
    IdsPart,
    Interval,
)
from rollforward.streams.storage.state_cache import size_of
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Violation


class Judge:
    """Looks at each commit of a simulation.

    Attributes:
        lanes: By id of a record, the lane in which it came in first: "0" is in time.
        accepted: By interval and id, when it was accepted, as often as it was.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.head = Head()
        self.lanes: dict[str, str] = {}
        self.accepted: dict[tuple[str, str], list[int]] = {}
        graph = simulation.pipeline.graph
        self.readers = {
            name: [other for other in graph.order if name in graph.upstream[other]]
            for name in graph.order
        }
        simulation.store.on_commit = self.judge

    @property
    def rows(self) -> dict[Key, StoredRow]:
        """The rows of this pipeline; another one may have rows in the same store."""
        return {key: row for key, row in self.simulation.rows if self._is_own(key)}

    def _is_own(self, key: Key) -> bool:
        return key.name.partition(":")[0] == self.simulation.pipeline.name

    def judge(self, commit: Commit, before: Mapping[Key, StoredRow]) -> None:
        """Check a commit: nothing falls, no watermark passes what is pending, the books are right.

        Raises:
            Violation: an invariant does not hold.
        """
        before = {key: row for key, row in before.items() if self._is_own(key)}
        written = [(key, body) for key, body in commit.rows if self._is_own(key)]
        for key, body in written:
            was = before[key].body if key in before else None
            if key.kind == HEAD:
                self._judge_head(body)
            elif key.kind == CHUNK:
                self._judge_chunk(key.name)
                for letter in body:
                    if letter.id:
                        self.lanes.setdefault(letter.id, key.name.split(":")[3])
            elif key.kind == INTERVAL:
                self._judge_interval(key.name, body, was)
            elif key.kind == SLAB:
                self._judge_slab(key.name, body)
            elif key.kind == IDS:
                self._judge_ids(key.name, body[len(was or ()) :])
            elif key.kind == SOURCE and was is not None:
                self._judge_source(key.name, body, was)
        self._judge_books(written, before)

    def _judge_head(self, head: Head) -> None:
        before, self.head = self.head, head
        for name, at in before.inputs.items():
            if head.inputs.get(name, 0) < at:
                raise Violation(f"the watermark of {name} falls to {head.inputs.get(name)}")
        for name, at in before.published.items():
            if head.published.get(name, 0) < at:
                raise Violation(f"the published watermark of {name} falls")
        for key, found in self.rows.items():
            if key.kind == CHUNK:
                self._judge_chunk(key.name)
            elif key.kind == INTERVAL:
                self._judge_hold(key.name.split(":")[1], found.body.hold)

    def _judge_chunk(self, name: str) -> None:
        _, computation, _, lane, at, _ = name.split(":")
        if lane == "0" and int(at) < self.head.inputs.get(computation, 0):
            raise Violation(f"{name} is in time, and below the watermark {self.head.inputs}")

    def _judge_hold(self, computation: str, hold: int) -> None:
        for reader in self.readers[computation]:
            if self.head.inputs.get(reader, 0) > hold:
                raise Violation(f"{computation} is held at {hold}, passed by {self.head.inputs}")

    def _judge_interval(self, name: str, now: Interval, was: Interval | None) -> None:
        self._judge_hold(name.split(":")[1], now.hold)
        if was is not None and any(
            after < before for after, before in zip(_counts(now), _counts(was), strict=True)
        ):
            raise Violation(f"{name} goes back to {now}")

    def _judge_slab(self, name: str, body: SlabBody) -> None:
        slots = {slot_of(key) for key in body.keys}
        if len(slots) > 1 and size_of(body) > state_store.MAX_SLAB_BYTES:
            raise Violation(f"{name} has {len(slots)} slots, and {size_of(body)} bytes")

    def _judge_ids(self, name: str, new: tuple[str, ...]) -> None:
        """Check that what was accepted is accepted again only when its horizon has passed."""
        computation, lo = name.split(":")[1:3]
        horizon_ms = self.simulation.pipeline.dedup_ms(computation)
        for each in new:
            ats = self.accepted.setdefault((f"{computation}:{lo}", each), [])
            age_ms = self.simulation.now_ms - ats[-1] if ats else FOREVER
            if age_ms < horizon_ms - self.simulation.spread_ms:
                raise Violation(f"{each} is accepted again after {age_ms} ms")
            ats.append(self.simulation.now_ms)

    def _judge_source(self, name: str, now: Any, was: Any) -> None:
        if now == was._replace(layout_version=now.layout_version):
            return  # A tick has noted the layout.
        if now.watermark < was.watermark or now.seq != was.seq + (not now.is_idle):
            raise Violation(f"{name} goes back to {now}")
        position = now.position[1] if isinstance(now.position, tuple) else now.position
        if position is not None and position != now.records:
            raise Violation(f"{name} is at {now.position}, with {now.records} records")

    def _judge_books(
        self, written: Sequence[tuple[Key, Any]], before: Mapping[Key, StoredRow]
    ) -> None:
        """Check that what a commit takes out of an inbox is what it says it has worked on."""
        taken, said = Counter[str](), Counter[str]()
        for key, found in before.items():
            if key.kind == CHUNK:
                taken[key.name.split(":")[1]] += len(found.body)
            elif key.kind == INTERVAL:
                said[key.name.split(":")[1]] -= _worked_on(found.body)
        for key, body in written:
            if key.kind == CHUNK and key in before:
                taken[key.name.split(":")[1]] -= len(body)
            elif key.kind == INTERVAL:
                said[key.name.split(":")[1]] += _worked_on(body)
            elif key.kind == CHUNK and key.name.split(":")[1] in said:
                taken[key.name.split(":")[1]] -= len(body)  # Forwarded.
            elif key.kind == DEAD and body.record is None:
                said[body.computation] -= 1  # A timer was in no inbox.
        if any(taken[name] != said[name] for name in {*taken, *said}):
            raise Violation(f"the books are wrong: taken {taken}, worked on {said}")

    def judge_drained(self) -> None:
        """Check that nothing waits, and that the watermarks have come to their end."""
        rows = self.rows
        if left := [key.name for key in rows if key.kind == CHUNK]:
            raise Violation(f"stuck: {left}")
        if set(self.head.inputs.values()) != {FOREVER}:
            raise Violation(f"the watermark stands still at {self.head.inputs}")
        intervals = {key.name: row.body for key, row in rows.items() if key.kind == INTERVAL}
        if any(min(each.due, each.processing_due) < NEVER for each in intervals.values()):
            raise Violation("a timer has not fired")

    def judge_rest(self) -> None:
        """Check the end of all schedules: all is drained, all has fired, no row is left over."""
        self.judge_drained()
        rows = self.rows
        if bad := [each for _, state in self.states("") for each in state.get("bad", ())]:
            raise Violation(f"{bad}")
        intervals = {key.name: row.body for key, row in rows.items() if key.kind == INTERVAL}
        ids = {_row_of(name, part) for name, each in intervals.items() for part in each.ids}
        if orphans := {key.name for key in rows if key.kind == IDS} ^ ids:
            raise Violation(f"rows of ids: {orphans}")
        large = {key for row in rows.values() for key in getattr(row.body, "large", ())}
        if orphans := {key.name.split(":")[3] for key in rows if key.kind == LARGE} ^ large:
            raise Violation(f"rows of states: {orphans}")

    def states(self, computation: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the keys of a computation, or a part of a fused one, and its states; "": all."""
        computations = self.simulation.pipeline.computations
        found = []
        for row, each in self.rows.items():
            _, _, rest = row.name.partition(":")
            name = rest.partition(":")[0]
            if row.kind == LARGE:
                texts = {row.name.rpartition(":")[2]: each.body}
            elif row.kind == SLAB:
                texts = {key: state.text for key, state in each.body.keys.items() if state.text}
            else:
                continue
            for key, text in texts.items():
                state = computations[name].codec.load(text)
                is_fused = isinstance(computations[name], Fused)
                parts = state if is_fused else {name: state}
                found += [(key, parts[part]) for part in parts if computation in ("", part)]
        return found


def _row_of(interval: str, part: IdsPart) -> str:
    """Return the name of a row of ids, which may be that of an interval of before a split."""
    named = interval if part.lo is None else f"{interval.rpartition(':')[0]}:{part.lo:04x}"
    return f"{named}:{part.number:010d}"


def _worked_on(interval: Interval) -> int:
    return interval.records + interval.late + interval.dead + interval.repeated


def _counts(interval: Interval) -> tuple[int, ...]:
    return interval.seq, interval.gen, interval.fired, interval.produced, _worked_on(interval)
