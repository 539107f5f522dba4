"""Three stages under a schedule, and what must hold after each commit and at rest."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from typing import Any, ClassVar

from pipelines.streams import FOREVER, Computation, Context, Pipeline, PushSource, Record, Timer
from pipelines.streams.calls import Commit, Pause
from pipelines.streams.injection import Offer, arrival, inject
from pipelines.streams.records import NEVER
from pipelines.streams.rows import CHUNK, DEAD, HEAD, INTERVAL, SLAB, Head
from tests.pipelines.streams.simulator import Chances, Simulation, Violation

WINDOW = 10
KEYS = 4
STAGES = ("rekey", "windows", "collect")


class Rekey(Computation):
    """Hands records on under another key; one in many is poison."""

    inputs: ClassVar = {"in": lambda value: value["k"]}
    outputs = ("mid",)
    max_attempts = 2

    def record(self, ctx: Context, record: Record) -> None:
        if record.value.get("poison"):
            raise ValueError("poison")
        number = int(record.value["k"][1:])
        key = f"m{(number * 7 + 1) % KEYS}"
        ctx.produce("mid", {"k": key, "id": record.value["id"], "in_time": record.value["in_time"]})


class Windows(Computation):
    """Counts per key and window, and notes what should not be."""

    inputs: ClassVar = {"mid": lambda value: value["k"]}
    outputs = ("counts",)

    def record(self, ctx: Context, record: Record) -> None:
        start = record.at // WINDOW * WINDOW
        if start + WINDOW <= ctx.watermark:
            if not ctx.late:
                ctx.state.list("bad").append(f"{record.value['id']} was in time, and is late")
            ctx.state.list("late").append(record.value["id"])
            ctx.drop_late()
            return
        ctx.state.map("open").add(str(start))
        ctx.set_timer(str(start), start + WINDOW)

    def timer(self, ctx: Context, timer: Timer) -> None:
        last = ctx.state.value("fired", -1)
        if timer.at < last.get():
            ctx.state.list("bad").append(f"timer {timer.at} after {last.get()}")
        last.set(timer.at)
        count = ctx.state.map("open").pop(timer.tag)
        ctx.produce("counts", {"k": ctx.key, "start": int(timer.tag), "count": count})


class Collect(Computation):
    inputs: ClassVar = {"counts": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        if record.at < ctx.watermark and not ctx.late:
            ctx.state.list("bad").append(f"window {record.value} was in time, and is late")
        ctx.state.list("got").append([record.value["start"], record.value["count"]])


SOURCE = PushSource("in")
STREAMS = Pipeline("sim", Rekey, Windows, Collect, sources=[SOURCE], intervals=2)


class Schedule:
    """One schedule of the stages, with records that come twice, late, or are poison."""

    def __init__(self, seed: int, chances: Chances | None = None, records: int = 12) -> None:
        self.simulation = Simulation(STREAMS, seed, chances)
        chance = random.Random(seed)
        self.records = [self._record(chance, n) for n in range(records)]
        sends = [*self.records]
        for each in self.records:
            if chance.random() < 0.2:
                sends.insert(chance.randrange(sends.index(each) + 1, len(sends) + 1), each)
        self.sends = sends
        self.luck = [chance.random() for _ in sends]
        self.sent = 0
        self.watermark = 0
        self.head = Head()
        self.simulation.store.on_commit = self._judge
        self.simulation.users.append(self._user)

    @staticmethod
    def _record(chance: random.Random, number: int) -> dict[str, Any]:
        at = max(0, number * 3 - chance.randrange(8))
        value = {"k": f"k{chance.randrange(KEYS)}", "id": f"r{number}", "at": at}
        return {**value, "poison": 1} if chance.random() < 0.05 else value

    def run(self) -> None:
        """Play it to its end.

        Raises:
            Violation: an invariant does not hold.
        """
        self.simulation.run()
        self._judge_rest()

    def _user(self) -> Generator[Any, Any, None]:
        """One who pushes, says how far the stream is, and repeats what was not confirmed."""
        environment = self.simulation.environment(self.simulation.machines[0])
        while self.sent < len(self.sends):
            part = self.sends[self.sent : self.sent + 3]
            left = self.sends[self.sent + len(part) :]
            watermark = min((each["at"] for each in left), default=self.watermark)
            if self.luck[self.sent] < 0.25:
                watermark += 8  # An estimate that is too high: some will be late.
            watermark = max(self.watermark, watermark)
            arrivals = [
                arrival(environment, "in", {**each, "in_time": 1}, each["at"], each["id"])
                for each in part
            ]
            yield from inject(environment, Offer("in", "", arrivals, watermark))
            self.sent, self.watermark = self.sent + len(part), watermark
            yield Pause(0.01)
        yield from inject(environment, Offer("in", "", [], FOREVER))

    # What must hold

    def _judge(self, commit: Commit) -> None:
        """Check a commit: no watermark falls, or passes what is pending and in time."""
        for key, body in [*((key, body) for key, body, _ in commit.puts), *commit.inserts]:
            if key.kind == HEAD:
                self._judge_head(body)
            elif key.kind == CHUNK:
                self._judge_chunk(key.name)
            elif key.kind == INTERVAL:
                self._judge_hold(key.name.split(":")[1], body.hold)

    def _judge_head(self, head: Head) -> None:
        before, self.head = self.head, head
        for name, at in head.inputs.items():
            if at < before.inputs.get(name, 0):
                raise Violation(f"the watermark of {name} falls to {at}")
        for key, found in self.simulation.store.rows.items():
            if key.kind == CHUNK:
                self._judge_chunk(key.name)
            elif key.kind == INTERVAL:
                self._judge_hold(key.name.split(":")[1], found.body.hold)

    def _judge_chunk(self, name: str) -> None:
        _, computation, _, lane, at, _ = name.split(":")
        if lane == "0" and int(at) < self.head.inputs.get(computation, 0):
            raise Violation(f"{name} is in time, and below the watermark {self.head.inputs}")

    def _judge_hold(self, computation: str, hold: int) -> None:
        stage = STAGES.index(computation) + 1
        if stage < len(STAGES) and self.head.inputs.get(STAGES[stage], 0) > hold:
            raise Violation(f"a timer at {hold} of {computation} is passed by {self.head.inputs}")

    def _judge_rest(self) -> None:
        """Check the end: all is drained, each record counts once, each window was written once."""
        rows = self.simulation.store.rows
        if left := [key.name for key in rows if key.kind == CHUNK]:
            raise Violation(f"stuck: {left}")
        if self.sent < len(self.sends) or set(self.head.inputs.values()) != {FOREVER}:
            raise Violation(f"the watermark stands still at {self.head.inputs}")
        if any(found.body.due < NEVER for key, found in rows.items() if key.kind == INTERVAL):
            raise Violation("a timer has not fired")
        if bad := [each for state in self._states("").values() for each in state.get("bad", ())]:
            raise Violation(f"{bad}")
        self._judge_counts()

    def _judge_counts(self) -> None:
        late = [each for s in self._states("windows").values() for each in s.get("late", ())]
        states = self._states("collect").items()
        got = [(key, *window) for key, state in states for window in state.get("got", ())]
        written = Counter((key, start) for key, start, _ in got)
        if max(written.values(), default=1) > 1:
            raise Violation(f"a window was written twice: {written}")
        dead = [key for key in self.simulation.store.rows if key.kind == DEAD]
        poison = [each for each in self.records if "poison" in each]
        if len(dead) != len(poison) or len(set(late)) != len(late):
            raise Violation(f"dead {len(dead)}, poison {len(poison)}, late {late}")
        truth = Counter(
            (f"m{(int(each['k'][1:]) * 7 + 1) % KEYS}", each["at"] // WINDOW * WINDOW)
            for each in self.records
            if each["id"] not in late and "poison" not in each
        )
        if truth != Counter({(key, start): count for key, start, count in got}):
            raise Violation(f"counts {sorted(got)} instead of {sorted(truth.items())}")

    def _states(self, computation: str) -> dict[str, dict[str, Any]]:
        codec = Rekey.codec
        return {
            key: codec.load(state.text)
            for row, found in self.simulation.store.rows.items()
            if row.kind == SLAB and f":{computation}" in row.name
            for key, state in found.body.keys.items()
            if state.text
        }
