"""Flows: their steps, their events, and results that are too large for a row.

FlowRun
    Key: "<name of the flow>|<id>". All that a flow has done and waits for. Each change is a
    compare-and-set by its version, or a transaction that reads it.
    Queries: due <= a time, by due: flows that are overdue, or wake from a sleep. state = a state,
    by key: how many run, or have failed. other_version_since > the epoch: how many wait for another
    version of the code. By created, or by failed: the newest are listed. A range
    of `expires`: expired rows. Single-property indexes.
    Growth: one row for each flow, until `keep` after its end. 500 and more that start in the same
    second slow each other down, by the indexes of `created` and `due`.

FlowValue
    Key: "<flow>|<owner>|<number>": a chunk of a result or of an event's content.
    Queries: ranges of keys: what is deleted with its flow. Growth: a row for each 900,000 bytes of
    a value that its flow's row has no room for, until its flow is deleted.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import client_namespace, key_of_client
from rollforward.flows.errors import BadStepError
from rollforward.flows.rows.records import StepRecord, record_of

# Of the row's 1 MiB, with the arguments. A thousand undos, with names of characters that take six
# bytes in JSON, are 300,000 more, and events 220,000.
MAX_STEPS_BYTES = 500_000
# Results of any size are in the row until its steps, as JSON, take so much; then small ones only.
ROOMY_BYTES = 100_000
MANY = 100

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None)
RUNNING, UNDOING = "running", "undoing"
SUCCEEDED, REJECTED, CANCELLED, FAILED = "succeeded", "rejected", "cancelled", "failed"
# A failed flow waits for a person, who has it retried or cancelled. The others have ended.
ENDED = (SUCCEEDED, REJECTED, CANCELLED)


class FlowRun(ndb.Model):
    """One flow."""

    state = ndb.StringProperty(required=True, default=RUNNING)
    # What it ends as once it is undone: rejected or cancelled. Kept when undoing it fails.
    verdict = ndb.TextProperty()
    reason = ndb.TextProperty()  # Why it was rejected.
    failed_step = ndb.TextProperty()  # The step that it has failed at; None: its code has failed.
    # A person has cancelled it once more after undoing it had failed: calls of which nothing is
    # known are left as they are.
    skips_unknown = ndb.BooleanProperty(indexed=False, default=False)
    # A person has retried it so after undoing it had failed: calls that never began are made, if
    # the code only comes by them to others that it is to undo.
    passes_new = ndb.BooleanProperty(indexed=False, default=False)
    failure = ndb.TextProperty()  # Why it cannot go on until somebody retries or cancels it.
    args = ndb.TextProperty(required=True)
    steps = ndb.JsonProperty(default={})  # By name, in the order in which they began.
    # Each with its id and name, when it came, and its content or the rows that hold it.
    events = ndb.JsonProperty(default=[])  # Those that no step has taken, the oldest first.
    event_ids = ndb.JsonProperty(default={})  # Of all that came; by which transaction.
    result = ndb.TextProperty()  # What it returned, as JSON.
    started_by = ndb.TextProperty(required=True)  # The transaction that wrote it.
    # Its last retries and cancellations, by the id that their caller chose; by which transaction.
    retries = ndb.JsonProperty(default={})
    written_by = ndb.TextProperty()  # The last write of a delivery: proof that it was made.
    owner = ndb.TextProperty()  # The delivery that works on it, until lease_expires_at.
    lease_expires_at = ndb.DateTimeProperty(indexed=False)
    # One more whenever it is retried, or cancelled after it has failed.
    generation = ndb.IntegerProperty(indexed=False, default=1)
    reruns = ndb.JsonProperty(default={})  # By step: how often a result of it was dropped.
    created = ndb.DateTimeProperty(required=True)
    ended = ndb.DateTimeProperty(indexed=False)
    failed = ndb.DateTimeProperty()  # Its `created`, while it has failed: lists find it by that.
    due = ndb.DateTimeProperty()  # When the sweep wakes it; None: it has ended, or has failed.
    # Why the version that last delivered it cannot go on, and since when; None: it can.
    other_version = ndb.TextProperty()
    other_version_since = ndb.DateTimeProperty()
    sweeps = ndb.IntegerProperty(indexed=False, default=0)  # That woke it since its last change.
    lane = ndb.TextProperty()  # The key of a lane that its deliveries go through; None: none.
    turn = ndb.DateTimeProperty(indexed=False)  # Since when it waits there; None: it does not.
    expires = ndb.StringProperty()  # None: it has not ended.

    @property
    def flow_id(self) -> str:
        return str(self.key.id().partition("|")[2])

    @property
    def run(self) -> str:
        """Its start and its generation, which no other flow of its id has had."""
        return f"{self.started_by}:{self.generation}"

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def step(self, name: str) -> StepRecord | None:
        """Return the record of a step; None: it never began."""
        body = self.steps.get(name)
        return None if body is None else record_of(body)

    def note(self, name: str, record: StepRecord) -> None:
        """Set the record of a step."""
        self.steps = {**self.steps, name: record.body}

    def check_capacity(self) -> None:
        """Check that the row has room for another step.

        Raises:
            BadStepError: it has not.
        """
        if len(self.steps) <= MANY:
            return
        size = len(json.dumps([self.steps, self.reruns])) + len(self.args.encode())
        if size > MAX_STEPS_BYTES:
            raise BadStepError(
                f"the steps of a flow and its arguments take at most {MAX_STEPS_BYTES:,} bytes: "
                "have shorter names, results and errors, or flows of their own"
            )

    def has_capacity_for(self, value: str) -> bool:
        """Return whether a large value, as JSON, may be in the row with the steps."""
        return len(value) <= ROOMY_BYTES and len(json.dumps([self.steps, value])) <= ROOMY_BYTES

    def end_step(self, name: str, record: StepRecord) -> StepRecord:
        """Set the outcome of a step unless it has one; return the one that counts."""
        ended = self.step(name)
        if ended is not None and ended.has_ended:
            return ended
        self.note(name, record)
        return record

    def records(self) -> dict[str, StepRecord]:
        """Return the records of all steps, by name, in the order in which they began."""
        return {name: record_of(body) for name, body in self.steps.items()}


class FlowValue(ndb.Model):
    """A chunk of a value."""

    data = ndb.BlobProperty(required=True)


def run_key(run_id: str) -> Any:
    """Return the key of a flow, by its name and id as one text."""
    return key_of_client(FlowRun, run_id)


def value_key(run_id: str, owner: str, number: int) -> Any:
    """Return the key of a chunk."""
    return key_of_client(FlowValue, f"{run_id}|{owner}|{number:04d}")


def values_of(run_id: str) -> Any:
    """Return the query for the chunks of a flow."""
    lower, upper = key_of_client(FlowValue, f"{run_id}|"), key_of_client(FlowValue, f"{run_id}}}")
    return FlowValue.query(
        FlowValue._key > lower, FlowValue._key < upper, namespace=client_namespace()
    )


def due_by(end_utc: datetime.datetime) -> Any:
    """Return the query for the flows that are due by some time, the first one first."""
    due: Any = FlowRun.due
    # The lower bound keeps out flows that are not due at any time: None sorts first.
    return FlowRun.query(due > EPOCH, due <= end_utc).order(due)


def waiting_for_version() -> Any:
    """Return the query for the flows that wait for another version of the code, the first first."""
    since: Any = FlowRun.other_version_since
    return FlowRun.query(since > EPOCH).order(since)


def in_state(state: str) -> Any:
    """Return the query for the flows in a state."""
    return FlowRun.query(FlowRun.state == state).order(FlowRun._key)


def failed_flows(*, created_before: datetime.datetime | None = None) -> Any:
    """Return the query for the flows that have failed, the newest first."""
    failed: Any = FlowRun.failed
    query = FlowRun.query(failed > EPOCH).order(-failed)
    return query.filter(failed < created_before) if created_before else query


def failed_flows_created_at(at: datetime.datetime) -> Any:
    """Return the query for the failed flows that were created at the very same time."""
    return FlowRun.query(FlowRun.failed == at).order(FlowRun._key)


def latest_flows(*, created_before: datetime.datetime | None = None) -> Any:
    """Return the query for all flows, the newest first, those created before a time."""
    created: Any = FlowRun.created
    query = FlowRun.query().order(-created)
    return query.filter(created < created_before) if created_before else query


def flows_created_at(at: datetime.datetime) -> Any:
    """Return the query for the flows that were created at the very same time."""
    return FlowRun.query(FlowRun.created == at).order(FlowRun._key)
