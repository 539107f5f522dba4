"""Weak computations and sinks that come, change and leave, beside strong ones, under a schedule.

Who gets a record depends on the topology that its sender goes by. So each commit is judged by
itself: what it sends has to be all that follows, by its topology, from what it takes.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from rollforward.streams import Pipeline, PullSource, PushSource
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.slots import SLOTS
from rollforward.streams.scaling.resharding import merge, split
from rollforward.streams.topology.changes import attach, detach, replace
from tests.rollforward.streams.scenarios.changing import Changer, patiently
from tests.rollforward.streams.scenarios.weak import (
    KEY_SLOTS,
    RESHAPED,
    Collect,
    Outside,
    Path,
    PullOnce,
    Stage,
    Topology,
    Weak,
)
from tests.rollforward.streams.simulator.accidents import Chances
from tests.rollforward.streams.simulator.store import Steps, Violation
from tests.rollforward.streams.simulator.weak_invariants import WeakChangesJudge

ACTS = ("attach or drain", "attach or discard", "replace", "split", "merge")
WEIGHTS = (3, 4, 3, 2, 1)
SINKS = ("acts", "acts-too", "leaves")


class PercentileWatermarks(Stage):
    """The version that runs first."""

    reads = (2,)

    def __init__(self, name: str, streams: list[str], output: str, **more: Any) -> None:
        super().__init__(name, streams, **more)
        self.outputs = (output,)


class Later(PercentileWatermarks):
    """Writes to a further stream, before all else."""

    version, reads = 2, (1,)

    def __init__(self, name: str, streams: list[str], output: str, **more: Any) -> None:
        super().__init__(name, streams, output, **more)
        self.outputs = (output, "extra")

    def results(self, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "extra", {**value, "path": [*value["path"], f"{self.name}.extra"]}
        yield from super().results(value)


class Leaves(Sink):
    """Strong: what it makes of a record is a part of the commit."""


class ChangingTopology(Topology):
    """Four stages, some weak, of which two each write one stream; who reads them; and sinks."""

    def __init__(self, chance: random.Random, read: Any) -> None:
        self.read = read
        self.sources = ["in", "log"]
        drawn: dict[str, tuple[list[str], str, float]] = {
            "s0": (["in"], "mid", 0.8),
            "s1": ([chance.choice(("in", "log", "log"))], "mid", 0.6),
            "s2": (["mid"], "far", 0.7),
            "s3": ([chance.choice(self.sources)], "far", 0.5),
        }
        self.drawn = {
            name: (streams, output, chance.random() < weak, chance.choice((1, 1, 2)))
            for name, (streams, output, weak) in drawn.items()
        }
        self.strong = {name for name, (_, _, is_weak, _) in self.drawn.items() if not is_weak}
        self.handed = self._drawn_handed(chance)
        self.has_sinks = chance.random() < 0.5
        self.stages = self._stages(PercentileWatermarks)
        self.pipeline = self.deployed(with_standby=True)

    def _drawn_handed(self, chance: random.Random) -> str:
        """Return the stream that weak sinks read: one that no strong stage writes."""
        streams = [*self.sources, "far"]
        streams += ["mid"] * (not self.strong & {"s0", "s1"})
        if self.strong and chance.random() < 0.9:
            streams.remove("far")
        return chance.choice(streams)

    def _stages(self, kind: type[PercentileWatermarks]) -> list[Stage]:
        return [
            kind(name, streams, output, weak=weak, copies=copies)
            for name, (streams, output, weak, copies) in self.drawn.items()
        ]

    def deployed(self, *, with_standby: bool) -> Pipeline:
        """Return the code; that of before has nothing on standby."""
        key = {"key": lambda value: value["k"]}
        weak = [Outside(self.handed, name=name, **key) for name in SINKS[:2]]
        sinks: Sequence[Sink] = [*weak, Leaves("far", name=SINKS[2], **key)]
        running = sinks if self.has_sinks and not (self.handed == "far" and self.strong) else []
        standby: list[Computation] = [*self._stages(Later), Collect(["extra"], "extras")]
        standby += [each for each in sinks if each not in running]
        return Pipeline(
            "weak",
            *self._stages(PercentileWatermarks),
            Collect(["in", "log"]),
            Collect(["mid"], "heard"),
            Collect(["far"], "kept"),
            sources=[PushSource("in"), PullSource("log", self.read)],
            sinks=running,
            standby=standby if with_standby else [],
            intervals=2,
        )

    @property
    def optional(self) -> list[str]:
        return [*self.drawn, "kept", "extras", *SINKS]


class WeakChanges(Weak):
    """Somebody attaches, replaces and detaches what is weak and what is strong, splits and merges.

    In half of the seeds a machine has the code of before, for a while.
    """

    judged_by: ClassVar[Any] = WeakChangesJudge
    topology: ChangingTopology
    judge: WeakChangesJudge

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(seed, chances)
        self.luck = random.Random(f"weak changes {seed}")
        self.reshaped = RESHAPED  # It is drawn among the changes.
        self.changer = Changer(self.luck, self._change)
        self.done = self.changer.done
        if seed % 2:
            self.simulation.machines[0].pipeline = self.topology.deployed(with_standby=False)
        self.simulation.users.append(partial(self.changer.steps, self.simulation))

    def _drawn(self, chance: random.Random) -> ChangingTopology:
        return ChangingTopology(chance, PullOnce(self.logged).read)

    def _push(self) -> Steps:
        yield from patiently(super()._push(), self.luck)

    def _change(self, environment: Environment) -> tuple[str, Steps]:
        [act] = self.luck.choices(ACTS, WEIGHTS)
        name = self.luck.choice(self.topology.optional)
        stage = self.luck.choice([*self.topology.drawn, "heard", "kept", "collect"])
        version = self.luck.choice((1, 2)) if name in self.topology.drawn else 1
        if act == "replace":
            return act, replace(environment, self.luck.choice([*self.topology.drawn]), version)
        if act == "split":
            slot = self.luck.choice([*KEY_SLOTS, self.luck.randrange(SLOTS)])
            return act, split(environment, stage, slot)
        if act == "merge":
            los = self.head.intervals.get(stage, ())[1:] or [SLOTS // 2]
            return act, merge(environment, stage, self.luck.choice(los))
        if name in self.head.topology:
            act = act.removeprefix("attach or ")
            return act, detach(environment, name, discard=act == "discard")
        return "attach", attach(environment, name, version)

    # What must hold at rest

    def _is_exact(self, path: Sequence[str]) -> bool:
        """Return whether a record comes by a path once: a strong stage may begin anew on it."""
        return not self.topology.strong & {each.partition(".")[0] for each in path}

    def _judge_late(self) -> None:
        for name in self.head.topology:
            for _, state in self.judge.states(name):
                for id_, path in state.get("late", ()):
                    lane = self.judge.came[name].get((id_, tuple(path)))
                    if lane == "0" and self._is_exact(path):
                        raise Violation(f"{id_} by {path} came to {name} in time, and is late")

    def _judge_results(self) -> None:
        for name in ("collect", "heard", "kept", "extras"):
            got = Counter[Path]()
            for _, state in self.judge.states(name):
                got.update((id_, tuple(path)) for id_, path in state.get("got", ()))
            for (id_, path), count in got.items():
                if count > 1 and self._is_exact(path):
                    raise Violation(f"{id_} by {path} counts {count} times at {name}")
            if name == "collect":
                self._judge_all(got)
        if self.head.retired:
            raise Violation(f"not forgotten: {self.head.retired}")

    def _judge_all(self, got: Counter[Path]) -> None:
        truth = Counter[Path]((each["id"], ()) for each in [*self.records, *self.logged])
        if got != truth:
            raise Violation(f"more {got - truth}, fewer {truth - got}")

    def _judge_outside(self) -> None:
        """Check that a record has one name at a weak sink, however often that acted on it."""
        names: dict[str, dict[Path, set[str]]] = {sink: defaultdict(set) for sink in SINKS[:2]}
        handed = [(sink, record) for (sink, _), record in self.simulation.handed]
        for sink, each in [*handed, *self.judge.effects]:
            if sink in names:
                names[sink][each.value["id"], tuple(each.value["path"])].add(each.id)
        for sink, found in names.items():
            all_names = [name for some in found.values() for name in some]
            if len(all_names) != len(found) or len({*all_names}) != len(found):
                raise Violation(f"not one name each at {sink}: {dict(found)}")
        by_sink = [{name for some in found.values() for name in some} for found in names.values()]
        if both := set.intersection(*by_sink):
            raise Violation(f"{both} are names at two sinks, which call one service, perhaps")
