"""What must hold of each commit where weak computations come, change and leave."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rollforward.streams.graph.plan import CLEANING, RunningComputation, running_computations
from rollforward.streams.model.records import value_text
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.storage.remote_calls import Commit, Key, StoredRow
from rollforward.streams.storage.schema import (
    CHUNK,
    DEAD,
    IDS,
    INTERVAL,
    SOURCE,
    Head,
    InboxRecord,
    fingerprint,
)
from tests.rollforward.streams.scenarios.changing import ChangingJudge, is_cleaned
from tests.rollforward.streams.scenarios.weak import Path, Stage, WeakJudge
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Violation

ON_TIME = "0"


class Sent(NamedTuple):
    """A record on its way."""

    lane: str
    stream: str
    at: int
    text: str

    @property
    def value(self) -> Any:
        return json.loads(self.text)


Inboxes = defaultdict[str, Counter[Sent]]  # What a commit puts into them, by computation.


class WeakChangesJudge(ChangingJudge, WeakJudge):
    """Works out what follows from what a commit takes, by its topology: it has to send just that.

    A weak computation either gets a record into its inbox, or its results are sent; a weak sink has
    acted on it. Sources are read by `collect` always, so what they let in is seen there.

    Attributes:
        came: By computation and record the lane in which that came to it first.
        effects: What sinks have made of records that they got from their inboxes.
    """

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.came: defaultdict[str, dict[Path, str]] = defaultdict(dict)
        self.once: defaultdict[str, set[str]] = defaultdict(set)
        self.effects: list[tuple[str, SinkRecord]] = []

    def judge(self, commit: Commit, before: Mapping[Key, StoredRow]) -> None:
        if commit.delivery is not None:
            self.effects += [(commit.delivery.sink[0], each) for each in commit.delivery.values]
        super().judge(commit, before)

    def _judge_head(self, head: Head) -> None:
        for name in {*self.head.topology} - {*head.topology}:  # Who comes again is somebody else.
            self.came.pop(name, None)
            self.once.pop(name, None)
            self.accepted = {
                place: ats
                for place, ats in self.accepted.items()
                if place[0].partition(":")[0] != name
            }
        super()._judge_head(head)

    def _know_readers(self, head: Head) -> None:
        """Know all that are behind a computation, not only the next ones."""
        super()._know_readers(head)
        gone = {name for name, part in running_computations(head).items() if part.phase == CLEANING}
        near = {name: set() if name in gone else {*found} for name, found in self.readers.items()}
        far = near
        for _ in near:
            far = {name: found.union(*(far[each] for each in found)) for name, found in far.items()}
        self.readers = defaultdict(list, {name: sorted(found) for name, found in far.items()})

    def _judge_ids(self, name: str, new: tuple[str, ...]) -> None:
        super(ChangingJudge, self)._judge_ids(name, new)

    # What follows from what

    def _judge_sent(self, commit: Commit, before: Mapping[Key, StoredRow]) -> None:
        inboxes: Inboxes = defaultdict(Counter)
        for key, body in commit.inserts:
            if key.kind == CHUNK:
                inboxes[key.name.split(":")[1]].update(_sent(key, body))
        self._note_lanes(inboxes)
        taken = [] if is_cleaned(commit) else _taken(commit, before)
        if taken and inboxes[taken[0][0]]:
            self._judge_forwarded(taken, inboxes)
            return
        layout, follows = self._follows(commit, before, taken, inboxes)
        parts = running_computations(self.topologies[layout]) if layout is not None else {}
        for each in follows:
            self._expect(parts, inboxes, each)
        if more := {name: +box for name, box in inboxes.items() if +box}:
            raise Violation(f"sent by no topology: {more}")

    def _note_lanes(self, inboxes: Inboxes) -> None:
        for name, box in inboxes.items():
            for each in sorted(box):
                path = each.value["id"], tuple(each.value["path"])
                self.came[name].setdefault(path, each.lane)

    def _judge_forwarded(self, taken: list[tuple[str, str, InboxRecord]], inboxes: Inboxes) -> None:
        """Check that what lay in an inbox that was left goes on as it is."""
        was = Counter(_one(lane, letter) for _, lane, letter in taken)
        if +inboxes.pop(taken[0][0]) != was or any(inboxes.values()):
            raise Violation(f"not forwarded as it came: {was}")

    def _follows(
        self,
        commit: Commit,
        before: Mapping[Key, StoredRow],
        taken: list[tuple[str, str, InboxRecord]],
        inboxes: Inboxes,
    ) -> tuple[int | None, list[Sent]]:
        """Return what a commit has to send, and the layout by which it does."""
        for key, body in commit.rows:
            was = before[key].body if key in before else None
            if key.kind == SOURCE and body.seq > (was.seq if was is not None else 0):
                stream = key.name.split(":")[1]
                found = inboxes["collect"].elements()
                return body.layout_version, [each for each in found if each.stream == stream]
            if key.kind == INTERVAL and taken:
                repeated = body.repeated - (was.repeated if was is not None else 0)
                accepted = self._accepted(commit, before, taken, repeated)
                return body.layout_version, self._made(
                    commit, taken[0][0], body.layout_version, accepted
                )
        return None, []

    def _accepted(
        self,
        commit: Commit,
        before: Mapping[Key, StoredRow],
        taken: list[tuple[str, str, InboxRecord]],
        repeated: int,
    ) -> list[Sent]:
        """Return what was not dropped as repeated; nothing of that was accepted before."""
        name, new = taken[0][0], set[str]()
        for key, body in commit.rows:
            if key.kind == IDS:
                new |= {*body[len(before[key].body) if key in before else 0 :]}
        accepted = []
        for _, lane, letter in taken:
            mark = fingerprint(f"{letter.stream} {letter.id}") if letter.id else ""
            if repeated and mark and mark not in new:
                continue
            new.discard(mark)
            if mark and mark in self.once[name]:
                raise Violation(f"{letter} counts twice at {name}")
            self.once[name].add(mark)
            accepted.append(_one(lane, letter))
        if len(accepted) + repeated != len(taken):
            raise Violation(f"{name} took {taken}, of that {repeated} again, and knows {accepted}")
        return accepted

    def _made(self, commit: Commit, name: str, layout: int, accepted: list[Sent]) -> list[Sent]:
        """Return what a computation makes of records; poison becomes a dead letter each."""
        code = self._code(running_computations(self.topologies[layout]), name)
        poison = [each for each in accepted if each.value.get("poison") == name]
        dead = sum(key.kind == DEAD for key, _ in commit.inserts)
        if dead != len(poison):
            raise Violation(f"{dead} dead letters of {name}, not {len(poison)}")
        if not isinstance(code, Stage):
            return []
        return [made for each in accepted if each not in poison for made in _results(code, each)]

    def _code(self, parts: Mapping[str, RunningComputation], name: str) -> Any:
        return self.simulation.pipeline.versions[name, parts[name].version]

    def _expect(
        self, parts: Mapping[str, RunningComputation], inboxes: Inboxes, sent: Sent
    ) -> None:
        """Find a record with all who read its stream, or what has become of it there."""
        for name, part in parts.items():
            if sent.stream not in part.inputs or part.is_leaving:
                continue
            if inboxes[name][sent]:
                inboxes[name][sent] -= 1
                continue
            code = self._code(parts, name)
            if not code.weak or sent.lane != ON_TIME or sent.value.get("poison") == name:
                raise Violation(f"{sent} does not come to {name}")
            if isinstance(code, Sink):
                self._judge_acted((name, part.version), sent)
                continue
            for each in _results(code, sent):
                self._expect(parts, inboxes, each)

    def _judge_acted(self, sink: tuple[str, int], sent: Sent) -> None:
        value = sent.value
        if not any(
            by == sink
            and (record.stream, record.timestamp_ms, record.value) == (sent.stream, sent.at, value)
            for by, record in self.simulation.handed
        ):
            raise Violation(f"{sink[0]} has not acted on {sent}, and does not get it")


def _sent(key: Key, letters: Iterable[InboxRecord]) -> list[Sent]:
    lane = key.name.split(":")[3]
    return [_one(lane, letter) for letter in letters]


def _one(lane: str, letter: InboxRecord) -> Sent:
    return Sent(lane, letter.stream, letter.timestamp_ms, letter.text)


def _taken(commit: Commit, before: Mapping[Key, StoredRow]) -> list[tuple[str, str, InboxRecord]]:
    """Return what a commit takes out of an inbox, in the order in which that is worked on."""
    left = {key: len(body) for key, body, _ in commit.puts if key.kind == CHUNK}
    taken = []
    for key in sorted((key for key in before if key.kind == CHUNK), key=lambda each: each.name):
        _, name, _, lane, *_ = key.name.split(":")
        letters = before[key].body
        taken += [(name, lane, each) for each in letters[: len(letters) - left.get(key, 0)]]
    return taken


def _results(code: Stage, sent: Sent) -> list[Sent]:
    return [
        Sent(sent.lane, stream, sent.at, value_text(value))
        for stream, value in code.results(sent.value)
    ]
