"""Telemetry of a process: logs and metrics of its work.

`context` has the task and the trace of the work in hand, for each thread. `log_entries` writes
records as entries of Cloud Logging: `CloudLogFormatter` serves a logging configuration of your own,
too. `logs` sets up logging in a process.

It imports no other package, and calls no service.
"""

from rollforward.telemetry.context import (
    TaskContext,
    Trace,
    carried,
    current_task,
    current_trace,
    in_run,
    in_task,
    in_trace,
    note_run,
    trace_of,
)
from rollforward.telemetry.log_entries import CloudLogFormatter

__all__ = [
    "CloudLogFormatter",
    "TaskContext",
    "Trace",
    "carried",
    "current_task",
    "current_trace",
    "in_run",
    "in_task",
    "in_trace",
    "note_run",
    "trace_of",
]
