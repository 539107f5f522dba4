"""Steps, as the code of a flow calls them: each by a name, with one outcome for ever."""

from __future__ import annotations

import contextlib
import copy
import datetime
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from google.cloud import ndb

from rollforward.batches import Completed, TaskBatch
from rollforward.datastore.transactions import is_in_transaction
from rollforward.flows.errors import (
    BadStepError,
    StepFailedError,
    Unwinding,
)
from rollforward.flows.rows import values
from rollforward.flows.rows.events import Event, event_of
from rollforward.flows.rows.records import DONE, Kind, StepRecord
from rollforward.flows.steps import calls, waits
from rollforward.flows.steps.attempt import FlowAttempt
from rollforward.flows.steps.calls import StepCall
from rollforward.flows.steps.policy import RetryPolicy
from rollforward.flows.steps.undoing import Undos
from rollforward.flows.steps.waits import Members
from rollforward.runtime.clients import Clients
from rollforward.runtime.type_adapters import adapter_of
from rollforward.tasks.errors import OtherVersionError, Reject
from rollforward.tasks.stored.names import hashed_name

P = ParamSpec("P")
R = TypeVar("R")


class Steps:
    """The steps of one flow: `step`, in its code.

    The code runs from its beginning in each delivery. A step that has ended returns its stored
    outcome; the first one that has not is run. So a name means one thing, and occurs once in a
    flow: `f"mail {number}"` in a loop.
    """

    def __init__(
        self,
        attempt: FlowAttempt,
        batch: TaskBatch | None,
        policy: RetryPolicy,
        undos: Undos,
    ) -> None:
        self._attempt = attempt
        self._batch = batch
        self._policy = policy
        self._undos = undos

    @property
    def flow_id(self) -> str:
        """The id that the flow was started with."""
        return self._attempt.row.flow_id

    @property
    def clients(self) -> Clients:
        """The clients of this delivery."""
        return self._attempt.clients

    def key(self, name: str) -> str:
        """Return an idempotency key for a step: the same in each attempt at it.

        It changes if a person drops the step's result to have it run again.
        """
        row = self._attempt.row
        return hashed_name(
            *("flow-step", self._attempt.run_id, row.created.isoformat(), name),
            row.reruns.get(name, 0),
        )

    def retrying(self, policy: RetryPolicy) -> Steps:
        """Return the same steps with other retries: `step.retrying(...).outside(...)`."""
        view = copy.copy(self)
        view._policy = policy
        return view

    # Call

    def commit(
        self, name: str, function: Callable[P, R], /, *args: P.args, **options: P.kwargs
    ) -> R:
        """Call a function that works in Datastore, in a transaction; return its result.

        Its writes, the tasks that it enqueues and its result are one commit: exactly once. It may
        run more often, as the body of any transaction.

        Raises:
            StepFailedError: it has failed as often as it may.
            Reject: it rejects the flow.
        """
        return self._run_step(name, "commit", function, args, options)  # type: ignore[no-any-return]

    def outside(
        self, name: str, function: Callable[P, R], /, *args: P.args, **options: P.kwargs
    ) -> R:
        """Call a function that works elsewhere; return its result.

        It runs at least once: again after an error, and when its worker died over it. Give it
        `step.key(name)`, so that the other side can tell a repetition.

        Raises: as `commit`.
        """
        return self._run_step(name, "outside", function, args, options)  # type: ignore[no-any-return]

    def undo(
        self, name: str, function: Callable[P, object], /, *args: P.args, **options: P.kwargs
    ) -> None:
        """Declare a call, as by `outside`, that is made if the flow is rejected or cancelled.

        The last one comes first.
        """
        self._add_undo(name, "outside", function, args, options)

    def undo_commit(
        self, name: str, function: Callable[P, object], /, *args: P.args, **options: P.kwargs
    ) -> None:
        """Declare a call, as by `commit`, that is made if the flow is rejected or cancelled."""
        self._add_undo(name, "commit", function, args, options)

    def _run_step(
        self,
        name: str,
        kind: Kind,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        with self._entered(name, kind) as record:
            if record is None or not record.has_ended:
                call = StepCall(name, kind, function, args, options, self._policy)
                record = calls.make(self._attempt, call)
            if record.state == DONE:
                return values.load(function, self._text_of(record))
        if record.is_reject:
            raise Reject(record.error.removeprefix("Reject: "))
        raise StepFailedError(name, record.error)

    def _add_undo(
        self,
        name: str,
        kind: Kind,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        call = StepCall(name, kind, function, args, options, self._policy, is_undo=True)
        with self._attempt.running():
            _check_outermost(self._attempt, name)
            self._undos.add(call)

    # Wait

    def sleep(
        self,
        name: str,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        until: datetime.datetime | None = None,
    ) -> None:
        """Wait for a time, up to ten years, or until an aware one; no worker waits.

        The first delivery that comes here sets its end. A time that is past is no wait.
        """
        wait_s = seconds + 60 * (minutes + 60 * (hours + 24 * days))
        now_s = self._attempt.now_s()
        with self._attempt.running():
            until_s = waits.end_of(name, now_s, wait_s, until)
        is_over = partial(waits.is_over, self._attempt, name, until_s)
        with self._entered(name, "sleep", is_over) as record:
            if record is None and until is not None:
                waits.check_until(name, until, wait_s)
            if not is_over():
                if record is None:
                    waits.check_ahead(name, until_s - now_s)
                waits.sleep(self._attempt, name, until_s)

    @overload
    def wait_for(self, name: str, *, timeout_s: None = None, event: str = "") -> Event: ...

    @overload
    def wait_for(self, name: str, *, timeout_s: float, event: str = "") -> Event | None: ...

    @overload
    def wait_for(self, name: str, *, timeout_s: float | None, event: str = "") -> Event | None: ...

    def wait_for(
        self, name: str, *, timeout_s: float | None = None, event: str = ""
    ) -> Event | None:
        """Wait for an event of the step's name, or of another one; None: it did not come in time.

        Events that came before are kept, and taken in their order, each by one step.

        Args:
            timeout_s: Seconds, up to ten years; None: without an end.
        """
        with self._entered(name, "wait") as record:
            waits.check_ahead(name, timeout_s or 0.0)
            if record is None or not record.has_ended:
                record = waits.wait_for_event(self._attempt, name, event or name, timeout_s)
            return event_of(record, self._text_of(record)) if record.event_id else None

    def batch(self, name: str, members: Members, /) -> Completed:
        """Run tasks as a batch, and wait until all of them have ended; return the totals.

        Args:
            members: Pairs of a task that the flow declares as a member, and its arguments, and the
                key of a lane if it waits in one: the same whenever the code runs.
        """
        with self._entered(name, "batch") as record:
            if self._batch is None:
                raise BadStepError(
                    "a flow with a batch declares its tasks: @flow(..., members=[...])"
                )
            if record is None or not record.has_ended:
                record = waits.wait_for_batch(self._attempt, self._batch, name, members)
            completed: Completed = adapter_of(Completed).validate_json(self._text_of(record))
        return completed

    # Enter

    @contextlib.contextmanager
    def _entered(
        self, name: str, kind: Kind, is_over: Callable[[], bool] = lambda: False
    ) -> Iterator[StepRecord | None]:
        """Yield the record of a step, None if it never began.

        Raises: as `FlowAttempt.running`.
        """
        with self._attempt.running():
            self._undos.names.use(name)
            yield self._record(name, kind, is_over)

    def _record(self, name: str, kind: Kind, is_over: Callable[[], bool]) -> StepRecord | None:
        attempt = self._attempt
        _check_outermost(attempt, name)
        record = attempt.row.step(name)
        if record is not None and record.kind != kind:
            raise OtherVersionError(
                f"the step {name!r} was of the kind {record.kind} when it ran, and is {kind} in "
                "this version of the code: give it another name"
            )
        if record is not None and record.has_ended:
            return record
        # A call that was begun may have taken effect: its outcome is needed to undo it.
        is_begun = kind == "outside" and record is not None
        if attempt.is_undoing and not (is_begun or is_over() or self._undos.is_allowed(kind)):
            raise Unwinding
        return record

    def _text_of(self, record: StepRecord) -> str:
        if not record.rows:
            return record.value
        keys = values.chunk_keys(self._attempt.run_id, record.rows, record.chunks)
        return values.joined(ndb.get_multi(keys))


def _check_outermost(attempt: FlowAttempt, name: str) -> None:
    """Check that the code of a flow calls a step, and not the function of another one.

    That does not run again once its step has ended, so an inner step would be missing then.

    Raises:
        BadStepError: a transaction calls it, or another step.
    """
    if is_in_transaction() or attempt.is_calling:
        raise BadStepError(f"the step {name!r} is called within a transaction, or another step")
