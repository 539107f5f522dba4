"""Undos: what the code of a flow has come to in a delivery, and the calls that undo it."""

from __future__ import annotations

from rollforward.app_code import runs_when_called
from rollforward.batches import TaskBatch
from rollforward.flows.errors import BadStepError, StepFailedError
from rollforward.flows.rows.records import DONE, FAILED, Kind
from rollforward.flows.steps import calls, waits
from rollforward.flows.steps.attempt import FlowAttempt
from rollforward.flows.steps.calls import StepCall
from rollforward.flows.steps.names import StepNames


class Undos:
    """The undos that a flow's code has declared in this delivery, and all names that it has used.

    Attributes:
        names: The names of its steps and undos.
        calls: In the order in which they were declared.
    """

    def __init__(self, attempt: FlowAttempt, batch: TaskBatch | None) -> None:
        self.names = StepNames()
        self.calls: list[StepCall] = []
        self._attempt = attempt
        self._batch = batch

    def add(self, call: StepCall) -> None:
        """Declare a call that is made if the flow is rejected or cancelled.

        Raises:
            BadStepError: the call would not run its function.
        """
        self.names.use(call.name)
        if not runs_when_called(call.function):
            raise BadStepError(
                f"the undo {call.name!r} must be a plain function: called, it would not run"
            )
        self.calls.append(call)

    def unknown(self) -> list[str]:
        """Return the calls that may have taken effect, and that the code does not undo.

        It has not come to them, or they have failed after a worker had died over them.
        """
        row = self._attempt.row
        return [
            name
            for name, record in row.records().items()
            if record.kind in ("commit", "outside")
            and not (record.is_undo or record.is_reject or row.skips_unknown)
            and (record.doubts if record.state == FAILED else name not in self.names)
        ]

    def is_allowed(self, kind: Kind) -> bool:
        """Return whether a person lets a step of a kind begin, because undos are behind it.

        Other code has made the calls, in another order: this one comes to them by the step.
        """
        can_pass = self._attempt.row.passes_new and kind in ("commit", "outside")
        return can_pass and any(name not in self.names for name in self.unknown())

    def run(self) -> None:
        """Call what undoes the steps of the code so far, the last one first.

        Raises:
            StepFailedError: one has failed as often as it may.
        """
        waits.cancel_batches(self._attempt, self._batch)
        for call in reversed(self.calls):
            record = self._attempt.row.step(call.name)
            if record is None or not record.has_ended:
                record = calls.make(self._attempt, call)
            if record.state != DONE and not record.is_reject:
                raise StepFailedError(call.name, record.error)
