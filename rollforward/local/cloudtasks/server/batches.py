"""BatchCreateTasks, BatchDeleteTasks, and the long-running operations they return.

Here an operation is done when the call returns. The metadata lists each refused member under its
index. If all members are refused, the operation is an ABORTED error, as the reference says of
BatchDeleteTasksMetadata. It does not say so of creation, which does the same here.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
"""

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

from google.longrunning import operations_proto_pb2 as operations_pb2  # Without gRPC.
from google.protobuf import empty_pb2
from google.rpc import status_pb2

from rollforward.local.cloudtasks.delivery.statuses import code_number
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import errors, messages
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.protocol.names import parent_of

MAX_CREATES = 100
MAX_DELETES = 1000

_SUCCEEDED = 2
_PARTIALLY_CREATED = 5
_PARTIALLY_DELETED = 3

CreateMetadata = messages.request("BatchCreateTasksMetadata")
CreateResponse = messages.request("BatchCreateTasksResponse")
DeleteMetadata = messages.request("BatchDeleteTasksMetadata")


class Batches:
    """The batch calls over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(self, request: Any) -> Any:
        """Add up to 100 tasks and return the finished operation.

        Raises:
            Refused: the call as a whole is wrong: parents, count, queue.
        """
        _check_create(request)
        name = self._operation_name("create", request.parent, request.request_id)
        if earlier := self._earlier(name):
            return earlier
        started_at = self._engine.clock.now()
        outcomes = self._engine.tasks.create_many(request.parent, request.requests)
        tasks = [outcome for outcome in outcomes if not isinstance(outcome, Refused)]
        metadata = CreateMetadata(state=_SUCCEEDED)
        if len(tasks) < len(outcomes):
            metadata.state = _PARTIALLY_CREATED
        self._finish_metadata(metadata, outcomes, started_at)
        return self._keep(name, metadata, CreateResponse(tasks=tasks), len(outcomes))

    def delete(self, request: Any) -> Any:
        """Delete up to 1,000 tasks and return the finished operation.

        Raises:
            Refused: the call as a whole is wrong: names, count, queue.
        """
        self._check_delete(request)
        name = self._operation_name("delete", request.parent, request.request_id)
        if earlier := self._earlier(name):
            return earlier
        started_at = self._engine.clock.now()
        outcomes = self._engine.tasks.delete_many(request.names)
        metadata = DeleteMetadata(state=_SUCCEEDED)
        if any(outcomes):
            metadata.state = _PARTIALLY_DELETED
        self._finish_metadata(metadata, outcomes, started_at)
        return self._keep(name, metadata, empty_pb2.Empty(), len(outcomes))

    def get(self, name: str) -> Any:
        """Return a kept operation.

        Raises:
            Refused: NOT_FOUND.
        """
        operation = self._earlier(name)
        if operation is None:
            raise errors.entity_unknown()
        return operation

    def list(self, parent: str = "") -> list[Any]:
        """Return the kept operations of a location, or all, oldest first."""
        operations = map(operations_pb2.Operation.FromString, self._engine.operations.all())
        return [operation for operation in operations if parent in ("", parent_of(operation.name))]

    def delete_operation(self, name: str) -> None:
        """Forget an operation, not its effect.

        Raises:
            Refused: NOT_FOUND.
        """
        self.get(name)
        self._engine.operations.delete(name)

    def _check_delete(self, request: Any) -> None:
        self._engine.queues.get(request.parent)
        if not request.names:
            raise errors.invalid("BatchDeleteTasksRequest.names must not be empty.")
        if len(request.names) > MAX_DELETES:
            raise errors.invalid(f"At most {MAX_DELETES} tasks can be deleted in a batch.")
        for name in request.names:
            if not name.startswith(f"{request.parent}/tasks/"):
                raise errors.task_of_other_queue(request.parent, name.partition("/tasks/")[0])

    def _operation_name(self, verb: str, queue: str, request_id: str) -> str:
        """Return the operation's name: the same for the same request id."""
        if request_id:
            operation_id = hashlib.sha256(f"{verb} {queue} {request_id}".encode()).hexdigest()[:32]
        else:
            operation_id = uuid.uuid4().hex
        return f"{parent_of(queue)}/operations/{operation_id}"

    def _earlier(self, name: str) -> Any | None:
        raw = self._engine.operations.get(name)
        return operations_pb2.Operation.FromString(raw) if raw is not None else None

    def _finish_metadata(self, metadata: Any, outcomes: Sequence[Any], started_at: float) -> None:
        messages.set_seconds(metadata.start_time, started_at)
        messages.set_seconds(metadata.end_time, self._engine.clock.now())
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, Refused):
                metadata.failed_requests[index].CopyFrom(_status(outcome.code, outcome.message))

    def _keep(self, name: str, metadata: Any, response: Any, count: int) -> Any:
        operation = operations_pb2.Operation(name=name, done=True)
        operation.metadata.Pack(metadata)
        if len(metadata.failed_requests) == count:
            kind = type(metadata).DESCRIPTOR.name
            operation.error.CopyFrom(
                _status(
                    "ABORTED",
                    f"None of the requests succeeded, refer to {kind}.failed_requests "
                    "for individual error details",
                )
            )
        else:
            operation.response.Pack(response)
        self._engine.operations.put(name, operation.SerializeToString())
        return operation


def _check_create(request: Any) -> None:
    if not request.requests:
        raise errors.invalid("BatchCreateTasksRequest.requests must not be empty.")
    if len(request.requests) > MAX_CREATES:
        raise errors.invalid(f"At most {MAX_CREATES} tasks can be created in a batch.")
    for index, member in enumerate(request.requests):
        if member.parent != request.parent:
            raise errors.invalid(
                f"The parent of requests[{index}] ('{member.parent}') must be the same as "
                f"the parent of the batch ('{request.parent}')."
            )


def _status(code: str, message: str) -> Any:
    return status_pb2.Status(code=code_number(code), message=message)
