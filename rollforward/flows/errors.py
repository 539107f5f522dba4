"""Errors of flows: of callers, of the code of a flow, and the ends of a delivery."""

from __future__ import annotations

from rollforward.app_code import ControlFlow
from rollforward.tasks.errors import Retry


class FlowError(Exception):
    """Base class of a caller's errors: nothing was changed."""


class BadFlowError(FlowError, ValueError):
    """A flow cannot have this id, or an event this name, id or content; the text says why."""


class UnknownFlowError(FlowError, LookupError):
    """There is no flow of this id, or its rows were deleted."""


class FlowEndedError(FlowError):
    """The flow has ended: it takes no event."""


class FlowRefusedError(FlowError):
    """This cannot be done to the flow as it is now; the text says why."""


class BadStepError(Exception):
    """The code of a flow has a mistake that no retry mends: the flow fails, and nothing is lost.

    Attributes:
        step: The step whose outcome it is; "": none.
    """

    def __init__(self, message: str, *, step: str = "") -> None:
        super().__init__(message)
        self.step = step


class StepFailedError(Exception):
    """A step has failed as often as it may. It is the step's outcome: each run of the code gets it.

    Attributes:
        step: The name of the step.
        reason: The last error, as text.
    """

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"the step {step!r} failed: {reason}")
        self.step = step
        self.reason = reason


class LeasedError(Retry):
    """Another delivery works on the flow, and has shown that it is alive."""


class NotDueError(Retry):
    """The flow waits for a time that has come by the queue's clock, and by this machine's not."""


class Suspended(ControlFlow):
    """The flow waits, and its row says for what: this delivery is over.

    Not an `Exception`, so that a flow's own `except Exception` lets it pass.
    """


class Interrupted(ControlFlow):
    """An error that is none of a step's ends the delivery; its cause is that error.

    Not an `Exception`, so that a flow's code cannot take it for the outcome of a step.
    """


class Unwinding(ControlFlow):
    """The code of a flow has come to a step that never began, and the flow is being undone."""
