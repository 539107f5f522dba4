"""A pipeline in the simulator, where a test says who does what next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rollforward.streams import Pipeline
from rollforward.streams.exchange.ingest import IngestRequest, IngestResult, inbound_record, ingest
from rollforward.streams.inspection.queryable_state import state
from rollforward.streams.inspection.status import Status, status
from rollforward.streams.storage.remote_calls import Call, Commit, Wake
from rollforward.streams.storage.schema import Head, Interval
from tests.rollforward.streams.simulator.accidents import NO_FAULTS
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Steps

PACE = {
    "lease_ms": 15_000,
    "run_ms": 20_000,
    "give_way_ms": 1_000,
    "waits_ms": 1_000,
    "watermark_ms": 0,
    "max_records": 500,
    "max_chunks": 20,
    "max_small_chunks": 200,
}


class Came(NamedTuple):
    """A record that is pushed."""

    id: str
    key: str
    at: int


class Desk:
    """One pipeline: its clocks agree unless a test says otherwise, its leases are the real ones."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.simulation = simulation = Simulation(pipeline, 0, NO_FAULTS)
        simulation.tells = False  # Each look is a scan.
        simulation.looks_below = True
        simulation.config = replace(simulation.config, linger=(), gather_s=0, **PACE)  # type: ignore[arg-type]
        simulation.has_snapshots = True
        simulation.tears = False
        simulation.max_steps = 100_000
        for machine in simulation.machines:
            machine.skew_ms = 0

    @property
    def environment(self) -> Any:
        return self.simulation.environment(self.simulation.machines[0])

    def push(
        self,
        *records: Came,
        stream: str = "in",
        process: str = "",
        watermark: int | None = None,
        **more: Any,
    ) -> IngestResult:
        """Let records in; nobody is woken before `run`."""
        records = [
            inbound_record(self.environment, stream, {"k": each.key, **more}, each.at, each.id)
            for each in records
        ]
        found: IngestResult = self.do(
            ingest(self.environment, IngestRequest(stream, process, records, watermark))
        )
        return found

    def do(self, steps: Steps) -> Any:
        """Run steps to their end."""
        return self.simulation.do(steps)

    def run(self) -> None:
        """Let all go on until there is nothing to do."""
        self.simulation.steps, self.simulation.has_rested = 0, False
        self.simulation.run()

    def wait(self, seconds: float) -> None:
        """Let time pass while nobody works."""
        self.simulation.now_ms += int(seconds * 1000)

    # One worker, step by step

    def worker(self, computation: str, *, machine: int = 0) -> Steps:
        """Return the steps of a worker of a computation's first interval."""
        target = Wake((computation, 0), ())
        return self.simulation.steps_of(target, self.simulation.machines[machine])

    def until(self, steps: Steps, kind: type[Any], *, of: int = 1) -> Call:
        """Run steps up to a call of a kind, the first or a later one, and return that."""
        call = next(steps)
        while True:
            of -= isinstance(call, kind)
            if not of:
                return call
            call = steps.send(self.simulation.acts[type(call)](call))

    def finish(self, steps: Steps, call: Call) -> Any:
        """Let steps that stand at a call go on, to their end."""

        def rest() -> Steps:
            at: Call = call
            while True:
                try:
                    answer = yield at
                except Exception as error:
                    go_on, given = steps.throw, error
                else:
                    go_on, given = steps.send, answer
                try:
                    at = go_on(given)
                except StopIteration as stop:
                    return stop.value

        return self.do(rest())

    # What can be seen

    @property
    def head(self) -> Head:
        head: Head = self.simulation.store.rows[self.environment.names.head].body
        return head

    def interval(self, computation: str) -> Interval:
        name = self.environment.names.interval(computation, 0)
        interval: Interval = self.simulation.store.rows[name].body
        return interval

    def status(self) -> Status:
        found: Status = self.do(status(self.environment))
        return found

    def state(self, computation: str, key: str) -> dict[str, Any]:
        found: dict[str, Any] = self.do(state(self.environment, computation, key))
        return found

    def rows(self, kind: str) -> Sequence[str]:
        return [key.name for key in self.simulation.store.rows if key.kind == kind]


def is_batch(call: Call) -> bool:
    """Return whether a call is the commit of a batch: more than an interval is written."""
    return isinstance(call, Commit) and len(call.puts) + len(call.inserts) > 1
