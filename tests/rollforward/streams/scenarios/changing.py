"""Schedules in which computations are attached, replaced and detached, and code is deployed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from rollforward.streams import Computation, Context, Pipeline, Record
from rollforward.streams.graph.plan import RUNNING, running_computations
from rollforward.streams.model.errors import StreamError
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.model.state import State
from rollforward.streams.scaling.resharding import merge, split
from rollforward.streams.storage.remote_calls import Commit, Key, Pause, StoredRow
from rollforward.streams.storage.schema import CHUNK, HEAD, INTERVAL, LARGE, SLAB, Head
from rollforward.streams.topology.changes import attach, detach, replace
from tests.rollforward.streams.scenarios.growing import SLOTS_OF_KEYS, Other, pipeline_of
from tests.rollforward.streams.simulator.accidents import Chances
from tests.rollforward.streams.simulator.invariants import Judge
from tests.rollforward.streams.simulator.schedules import Client, Collect, Rekey, Windows
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Steps, Violation, answered

CHANGES = 10
SHORT_S = 0.01
# What somebody does; some of it more often.
ACTS = (*["replace", "attach"] * 3, "drain", "discard", "split", "merge")


class Windows1(Windows):
    """What runs first; it can take over again from the second version."""

    name = "windows"
    reads = (2,)

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return state.pop("kept")


class Windows2(Windows):
    """Has all it keeps in another place, and tells of each window once more."""

    name = "windows"
    version = 2
    reads = (1,)
    outputs = ("counts", "extra")

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"kept": state}

    def record(self, ctx: Context, record: Record) -> None:
        super().record(_Inner(ctx), record)  # type: ignore[arg-type]

    def timer(self, ctx: Context, timer: Any) -> None:
        super().timer(_Inner(ctx), timer)  # type: ignore[arg-type]
        ctx.produce("extra", {"k": ctx.key, "start": int(timer.tag)})


class _Inner:
    """A context whose state is an item of the real one."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @property
    def state(self) -> Any:

        return State(self._ctx.state.setdefault("kept", {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class Copy(Collect):
    """Gets what `Collect` gets, while it runs."""


class Extras(Collect):
    inputs: ClassVar = {"extra": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms < ctx.watermark and not ctx.late:
            ctx.state.list("bad").append(f"extra {record.value} was in time, and is late")
        ctx.set_timer("later", record.timestamp_ms + 30)


class Echo(Computation):
    """Notes the ids of what comes in, while it runs."""

    inputs: ClassVar = {"in": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        if record.value["id"] in ctx.state.list("ids").get():
            ctx.state.list("bad").append(f"{record.value['id']} came twice")
        ctx.state.list("ids").append(record.value["id"])


OPTIONAL = ("copy", "extras", "echo")


class ChangingJudge(Judge):
    """Looks at each commit, by the topology that it goes by."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.topologies: dict[int, Head] = {}  # By layout.
        self.sent: Counter[str] = Counter()
        self.worked: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.cleans = False  # The commit that is judged deletes what a computation has left.

    def judge(self, commit: Commit, before: Mapping[Key, StoredRow]) -> None:
        self.cleans = is_cleaned(commit)
        for key, body in commit.rows:
            if key.kind == HEAD:
                self.topologies.setdefault(body.layout_version, body)
                self._know_readers(body)
        super().judge(commit, before)
        self._judge_sent(commit, before)
        self._judge_versions(commit, before)

    def _judge_versions(self, commit: Commit, before: Mapping[Key, StoredRow]) -> None:
        """Check that an interval's states are written by the version of the layout it has noted."""
        layouts = [body.layout_version for key, body in commit.rows if key.kind == INTERVAL]
        was: dict[str, Any] = {}
        for key, found in before.items():
            was |= found.body.keys if key.kind == SLAB else {}
        for key, body in commit.rows:
            if key.kind != SLAB or len(layouts) != 1 or commit.puts[0][0].kind != INTERVAL:
                continue
            name = key.name.split(":")[1]
            version = running_computations(self.topologies[layouts[0]])[name].version
            for each, state in body.keys.items():
                is_new = each not in was or state.text != was[each].text
                if state.text and state.version != version and is_new:
                    raise Violation(f"version {state.version} of {name} writes, not {version}")

    def _know_readers(self, head: Head) -> None:
        parts = running_computations(head)
        self.readers = {
            name: [
                other
                for other, part in parts.items()
                if {*part.inputs} & {*parts[name].written, *parts[name].previous_outputs}
                and not part.is_leaving
            ]
            for name in parts
        }

    def _judge_head(self, head: Head) -> None:
        gone = {name: at for name, at in self.head.inputs.items() if name not in head.inputs}
        for name in gone:
            part = running_computations(head).get(name)
            if part is not None and part.phase != "cleaning":
                raise Violation(f"{name} has no watermark any more, and is {part.phase}")
        inputs = {each: at for each, at in self.head.inputs.items() if each not in gone}
        self.head = self.head._replace(inputs=inputs)
        super()._judge_head(head)

    def _judge_ids(self, name: str, new: tuple[str, ...]) -> None:
        if name.split(":")[1] == "rekey":
            super()._judge_ids(name, new)

    def _judge_hold(self, computation: str, hold: int) -> None:
        if computation in self.readers:
            super()._judge_hold(computation, hold)

    def _judge_books(
        self, written: Sequence[tuple[Key, Any]], before: Mapping[Key, StoredRow]
    ) -> None:
        for key, found in before.items():
            if key.kind == CHUNK and self.cleans:
                self.dropped[key.name.split(":")[1]] += len(found.body)
        if not self.cleans:
            super()._judge_books(written, before)

    def _judge_sent(self, commit: Commit, before: Mapping[Key, StoredRow]) -> None:
        """Check that each record goes to all who read its stream by the sender's topology."""
        sent: dict[str, Counter[Any]] = {}
        for key, body in commit.inserts:
            if key.kind == CHUNK:
                name = key.name.split(":")[1]
                letters = Counter((each.stream, each.text, each.timestamp_ms) for each in body)
                sent.setdefault(name, Counter()).update(letters)
        senders = [
            (key.name.split(":")[1], body)
            for key, body in commit.rows
            if key.kind in (INTERVAL, "StreamSource")
        ]
        if len(senders) != 1 or _is_forwarded(senders[0][0], sent):
            return
        parts = running_computations(self.topologies[senders[0][1].layout_version])
        for stream in {each for letters in sent.values() for each, _, _ in letters}:
            readers = {n for n, p in parts.items() if stream in p.inputs and not p.is_leaving}
            got = {
                name: +Counter({e: n for e, n in letters.items() if e[0] == stream})
                for name, letters in sent.items()
            }
            got = {name: letters for name, letters in got.items() if letters}
            if {*got} != readers or len({tuple(sorted(each.items())) for each in got.values()}) > 1:
                raise Violation(f"{stream} goes to {sorted(got)}, and its readers are {readers}")

    def judge_rest(self) -> None:
        super().judge_rest()
        parts = running_computations(self.head)
        if changing := {name: part.phase for name, part in parts.items() if part.phase != RUNNING}:
            raise Violation(f"not done: {changing}")
        for kind in (INTERVAL, SLAB, LARGE, CHUNK):
            for key in self.simulation.store.rows:
                if key.kind == kind and key.name.split(":")[1] not in parts:
                    raise Violation(f"left over: {key}")

    def states(self, computation: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the keys of a computation with their states as its version reads them."""
        rows, parts = self.simulation.store.rows, running_computations(self.head)
        versions, found = self.simulation.pipeline.versions, []
        for row, each in rows.items():
            if row.kind != SLAB:
                continue
            name = row.name.split(":")[1]
            if computation not in ("", name) or name not in parts:
                continue
            code = versions[name, parts[name].version]
            for key, state in each.body.keys.items():
                text = state.text
                if key in each.body.large:
                    large = Key(LARGE, f"{row.name.rpartition(':')[0]}:{slot_of(key):04x}:{key}")
                    text = rows[large].body
                if text:
                    items = code.load(text, state.version)
                    found.append((key, items.get("kept", items)))
        return found


def is_cleaned(commit: Commit) -> bool:
    """Return whether a commit deletes what a computation has left."""
    return bool(commit.deletes) and {key.kind for key, _ in commit.rows} == {HEAD}


def _is_forwarded(sender: str, sent: Mapping[str, Any]) -> bool:
    return sender in sent


class Changer:
    """Somebody who changes something again and again; in the end nothing is left under way."""

    def __init__(self, luck: random.Random, drawn: Callable[[Any], tuple[str, Steps]]) -> None:
        self.luck, self.drawn = luck, drawn
        self.done: Counter[str] = Counter()
        self.made = 0

    def steps(self, simulation: Simulation) -> Steps:
        while self.made < CHANGES:
            yield Pause(self.luck.choice((0.001, 0.03, 0.12)))
            name, steps = self.drawn(simulation.environment(simulation.machines[1]))
            try:
                yield from steps
                self.done[name] += 1
            except StreamError:
                self.done["refused"] += 1
            self.made += 1


def patiently(steps: Steps, luck: random.Random) -> Steps:
    """Push with such pauses that several changes are done meanwhile."""

    def answer(call: Any) -> Generator[Any, Any, tuple[Any] | None]:
        if type(call) is not Pause or call.seconds > SHORT_S:
            return None
        yield Pause(luck.choice((SHORT_S, 0.15)))
        return (None,)

    return answered(steps, answer)


class Changing(Other):
    """Somebody attaches, replaces and detaches computations, and splits intervals.

    In half of the seeds a machine has the code of before, for a while.
    """

    has_refused = False  # Others read what comes in: it would be refused at the door.

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(
            pipeline_of(
                Rekey, Windows1, Collect, processes=2 if seed % 3 == 0 else 1,
                standby=[Windows2, Copy, Extras, Echo],
            ),
            seed,
            chances,
        )  # fmt: skip
        self.judge = ChangingJudge(self.simulation)
        self.luck = random.Random(f"changing {seed}")
        self.changer = Changer(self.luck, self._drawn)
        self.done = self.changer.done
        if seed % 2:
            self.simulation.machines[0].pipeline = self._old()
        self.simulation.users.append(partial(self.changer.steps, self.simulation))

    def _patient(self, client: Client) -> Generator[Any, Any, None]:
        yield from patiently(super()._patient(client), self.luck)

    def _old(self) -> Pipeline:
        now = self.simulation.pipeline
        names = now.sources["in"].processes
        return pipeline_of(Rekey, Windows1, Collect, processes=len(names))

    def _drawn(self, environment: Any) -> tuple[str, Any]:
        act, name = self.luck.choice(ACTS), self.luck.choice(OPTIONAL)
        stage = self.luck.choice(("rekey", "windows", "collect", name))
        slot = self.luck.choice([*SLOTS_OF_KEYS, self.luck.randrange(SLOTS)])
        version = self.luck.choice((1, 2))
        steps = {
            "replace": lambda: replace(environment, "windows", version),
            "attach": lambda: attach(environment, name, None),
            "drain": lambda: detach(environment, name, discard=False),
            "discard": lambda: detach(environment, name, discard=True),
            "split": lambda: split(environment, stage, slot),
            "merge": lambda: merge(environment, stage, SLOTS // 2),
        }
        return act, steps[act]()
