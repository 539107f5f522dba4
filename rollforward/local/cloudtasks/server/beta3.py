"""The methods of v2beta3: those of v2, with the messages of the older version.

Its queues also have a type, times to live, and statistics, which a read mask must ask for. Pull
queues are not served, and the times to live are those of every queue here.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2beta3
"""

from collections.abc import Callable, Iterable
from typing import Any

import google.cloud.tasks_v2beta3.types as types
from google.protobuf import descriptor_pool, field_mask_pb2

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import errors
from rollforward.local.cloudtasks.protocol.buffer_messages import buffer_messages
from rollforward.local.cloudtasks.protocol.messages import Queue as Queue2
from rollforward.local.cloudtasks.protocol.messages import Task as Task2
from rollforward.local.cloudtasks.protocol.messages import seconds_of, set_seconds
from rollforward.local.cloudtasks.protocol.translation import copy_fields, retype, translated
from rollforward.local.cloudtasks.server.methods import Method, Methods

Queue: Any = types.Queue.pb()
Task: Any = types.Task.pb()

_PACKAGE: str = Queue.DESCRIPTOR.file.package
_ROUTING, _OLD_ROUTING = "app_engine_routing_override", "app_engine_http_queue"
# What v2 does not have. The stored descriptor calls the type `type_`.
_OWN_FIELDS = {"type", "type_", "stats", "task_ttl", "tombstone_ttl"}
_OPERATIONS = {"GetOperation", "WaitOperation", "ListOperations"}
_KEPT = {"DeleteOperation", "CancelOperation", "ListLocations", "GetLocation"} | {
    "GetIamPolicy",
    "SetIamPolicy",
    "TestIamPermissions",
}


def methods(engine: Engine, v2: Methods) -> Methods:
    """Return the methods of v2beta3.

    Args:
        v2: The methods of v2, operations and locations included.
    """
    beta = Beta3(engine)
    table = {name: v2[name] for name in _KEPT}
    for name, method in v2.items():
        if name in _OPERATIONS:
            table[name] = Method(beta.operations(method.call), method.request, method.response)
        elif name not in _KEPT:
            table[name] = beta.method(name, method)
    table["GetQueue"] = beta.masked("GetQueue", table)
    table["ListQueues"] = beta.masked("ListQueues", table)
    return table


class Beta3:
    """The differences between v2beta3 and v2."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def method(self, name: str, v2: Method) -> Method:
        """Return a method of v2 with the messages of v2beta3."""
        request_type, response_type = _messages_of(name, v2)

        def call(request: Any) -> Any:
            return self._answer(v2.call(_request(request, v2.request)), response_type)

        return Method(call, request_type, response_type)

    def operations(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap a call that returns operations: what they carry is of this version."""

        def translate(request: Any) -> Any:
            answer = call(request)
            for operation in getattr(answer, "operations", [answer]):
                _retype_operation(operation)
            return answer

        return translate

    def masked(self, name: str, table: Methods) -> Method:
        """Return a method that shows of queues what the request's read mask names."""
        method = table[name]

        def call(request: Any) -> Any:
            mask = _read_mask(request.read_mask.paths)
            if mask.paths and not mask.IsValidForDescriptor(Queue.DESCRIPTOR):
                raise errors.invalid("The read mask names a field that a queue does not have.")
            answer = method.call(request)
            for queue in getattr(answer, "queues", [answer]):
                self._apply(mask, queue)
            return answer

        return Method(call, method.request, method.response)

    def _apply(self, mask: Any, queue: Any) -> None:
        if not mask.paths:
            return
        if any(path.partition(".")[0] == "stats" for path in mask.paths):
            self._add_stats(queue)
        shown = Queue()
        mask.MergeMessage(queue, shown)
        queue.CopyFrom(shown)

    def _add_stats(self, queue: Any) -> None:
        figures, stats = self._engine.history.figures(queue.name), queue.stats
        stats.tasks_count = figures.tasks
        stats.executed_last_minute_count = figures.ended_last_minute
        stats.concurrent_dispatches_count = figures.running
        stats.effective_execution_rate = figures.rate_per_s
        if figures.next_at is not None:
            set_seconds(stats.oldest_estimated_arrival_time, figures.next_at)

    def _answer(self, answer: Any, response_type: Any) -> Any:
        """Return a response of v2 as one of v2beta3."""
        if response_type is Queue:
            return self._queue(answer)
        response = translated(answer, response_type)
        if response_type.DESCRIPTOR.name == "ListQueuesResponse":
            del response.queues[:]
            response.queues.extend(map(self._queue, answer.queues))
        elif response_type.DESCRIPTOR.full_name == "google.longrunning.Operation":
            _retype_operation(response)
            self._engine.operations.put(response.name, response.SerializeToString())
        return response

    def _queue(self, queue: Any) -> Any:
        shown = translated(queue, Queue)
        if queue.HasField(_ROUTING):
            routing = shown.app_engine_http_queue.app_engine_routing_override
            copy_fields(queue.app_engine_routing_override, routing)
        figures = self._engine.history.figures(queue.name)
        set_seconds(shown.task_ttl, figures.task_ttl_s)
        set_seconds(shown.tombstone_ttl, figures.tombstone_ttl_s)
        shown.type_ = types.Queue.Type.PUSH
        return shown


def _read_mask(paths: Iterable[str]) -> Any:
    """Return a mask with the names of the descriptor; `*` stands for all fields."""
    named = ["type_" if path == "type" else path for path in paths]
    return field_mask_pb2.FieldMask(
        paths=[*Queue.DESCRIPTOR.fields_by_name] if "*" in named else named
    )


def _messages_of(name: str, v2: Method) -> tuple[Any, Any]:
    """Return the classes of a method's request and response."""
    if name == "BufferTask":
        return buffer_messages(Task)
    own = {Queue2: Queue, Task2: Task}
    response = own.get(v2.response) or getattr(types, v2.response.DESCRIPTOR.name, None)
    request_type = getattr(types, v2.request.DESCRIPTOR.name).pb()
    if response is None:
        return request_type, v2.response
    return request_type, response if response in own.values() else response.pb()


def _request(request: Any, v2_type: Any) -> Any:
    """Return a request of v2beta3 as one of v2.

    Raises:
        Refused: INVALID_ARGUMENT: it needs what only v2beta3 has, and the emulator has not.
    """
    asked = translated(request, v2_type)
    fields = request.DESCRIPTOR.fields_by_name
    if "queue" in fields and fields["queue"].message_type is not None:
        _check_queue(request.queue)
        if request.queue.HasField(_OLD_ROUTING):
            routing = request.queue.app_engine_http_queue
            if routing.HasField(_ROUTING):
                copy_fields(
                    routing.app_engine_routing_override, asked.queue.app_engine_routing_override
                )
    if "update_mask" in fields and "queue" in fields:
        _translate_mask(request.update_mask, asked.update_mask)
    members = request.requests if "requests" in fields else [request]
    for member in members:
        if "task" in member.DESCRIPTOR.fields_by_name and member.task.HasField("pull_message"):
            raise errors.invalid("Pull queues are not served here: a task has no pull_message.")
    return asked


def _check_queue(queue: Any) -> None:
    if queue.type_ == types.Queue.Type.PULL:
        raise errors.invalid("Pull queues are not served here: Queue.type must be PUSH.")
    for field in ("task_ttl", "tombstone_ttl"):
        if queue.HasField(field) and seconds_of(getattr(queue, field)):
            raise errors.invalid(f"Queue.{field} cannot be set here.")


def _translate_mask(mask: Any, target: Any) -> None:
    """Write the paths of a mask as those of v2; output-only fields are passed over."""
    del target.paths[:]
    for path in mask.paths:
        first, _, rest = path.partition(".")
        if first == _OLD_ROUTING:
            target.paths.append(rest or _ROUTING)
        else:
            target.paths.append("name" if first in _OWN_FIELDS else path)


def _retype_operation(operation: Any) -> None:
    pool = descriptor_pool.Default()
    retype(operation.metadata, _PACKAGE, pool)
    if operation.HasField("response"):
        retype(operation.response, _PACKAGE, pool)
