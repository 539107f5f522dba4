"""The methods of v2beta3: the same as v2's, with the messages of the older version.

Its queues also have a type, times to live, and statistics, which a read mask must ask for. A pull
queue can be made here, and its tasks be seen; v2beta2 creates and leases them.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2beta3
"""

from collections.abc import Callable
from typing import Any

import google.cloud.tasks_v2beta3.types as types
from google.protobuf import descriptor_pool

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import errors, messages
from rollforward.local.cloudtasks.protocol.beta_queues import (
    OWN_FIELDS,
    ReadMask,
    add_times_to_live,
    check_times_to_live,
)
from rollforward.local.cloudtasks.protocol.buffer_messages import buffer_messages
from rollforward.local.cloudtasks.protocol.messages import Queue as Queue2
from rollforward.local.cloudtasks.protocol.messages import Task as Task2
from rollforward.local.cloudtasks.protocol.task_messages import in_view
from rollforward.local.cloudtasks.protocol.translation import copy_fields, retype, translated
from rollforward.local.cloudtasks.server.methods import Method, Methods
from rollforward.local.cloudtasks.store.records import TaskRecord

Queue: Any = types.Queue.pb()
Task: Any = types.Task.pb()

_PACKAGE: str = Queue.DESCRIPTOR.file.package
_ROUTING, _OLD_ROUTING = "app_engine_routing_override", "app_engine_http_queue"
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
    table["CreateQueue"] = _wrap(beta.create_queue, table["CreateQueue"])
    table["UpdateQueue"] = _wrap(beta.update_queue, table["UpdateQueue"])
    table["GetTask"] = _wrap(beta.get_task, table["GetTask"])
    table["ListTasks"] = _wrap(beta.list_tasks, table["ListTasks"])
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
            return self._convert(v2.call(_request(request, v2.request)), response_type)

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
        """Return a method that shows the fields of queues that the request's read mask names."""
        method = table[name]

        def call(request: Any) -> Any:
            mask = ReadMask(request.read_mask.paths, Queue, self._engine.history.figures)
            answer = method.call(request)
            for queue in getattr(answer, "queues", [answer]):
                mask.apply(queue)
            return answer

        return Method(call, method.request, method.response)

    def create_queue(self, request: Any) -> Any:
        """Create a queue, of which the type says whether it is a pull queue."""
        asked = _request(request, messages.request("CreateQueueRequest"))
        is_pull = request.queue.type_ == types.Queue.Type.PULL
        return self._queue(self._engine.queues.create(asked.parent, asked.queue, is_pull=is_pull))

    def update_queue(self, request: Any) -> Any:
        """Change or create a queue; its type is immutable."""
        asked = _request(request, messages.request("UpdateQueueRequest"))
        kind = request.queue.type_
        is_pull = None if not kind else kind == types.Queue.Type.PULL
        paths = asked.update_mask.paths
        return self._queue(self._engine.queues.update(asked.queue, paths, is_pull=is_pull))

    def get_task(self, request: Any) -> Any:
        """Return a task, of any kind of queue."""
        return self._engine.tasks.get(request.name, request.response_view, _show_task)

    def list_tasks(self, request: Any) -> Any:
        """Return a page of tasks, of any kind of queue."""
        tasks, token = self._engine.tasks.page(
            request.parent, request.response_view, request.page_size, request.page_token, _show_task
        )
        return types.ListTasksResponse.pb()(tasks=tasks, next_page_token=token)

    def _convert(self, answer: Any, response_type: Any) -> Any:
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
        answer = translated(queue, Queue)
        if queue.HasField(_ROUTING):
            routing = answer.app_engine_http_queue.app_engine_routing_override
            copy_fields(queue.app_engine_routing_override, routing)
        traits = self._engine.queues.traits(queue.name)
        add_times_to_live(answer, traits)
        answer.type_ = types.Queue.Type.PULL if traits.is_pull else types.Queue.Type.PUSH
        return answer


def _wrap(call: Callable[[Any], Any], method: Method) -> Method:
    """Return a method with the same messages and another call."""
    return Method(call, method.request, method.response)


def _show_task(task: TaskRecord, view: int) -> Any:
    """Return a task's message, with its pull message if it has one."""
    message = translated(in_view(task, view), Task)
    if task.pull is not None:
        message.pull_message.tag = task.pull.tag
        if view == messages.FULL:
            message.pull_message.payload = task.pull.payload
        message.pull_message.SetInParent()
    return message


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
        check_times_to_live(request.queue)
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
            raise errors.invalid("Task.pull_message cannot be set in v2beta3, only in v2beta2.")
    return asked


def _translate_mask(mask: Any, target: Any) -> None:
    """Write the paths of a mask as v2's; output-only fields are passed over."""
    del target.paths[:]
    for path in mask.paths:
        first, _, rest = path.partition(".")
        if first == _OLD_ROUTING:
            target.paths.append(rest or _ROUTING)
        else:
            target.paths.append("name" if first in OWN_FIELDS else path)


def _retype_operation(operation: Any) -> None:
    pool = descriptor_pool.Default()
    retype(operation.metadata, _PACKAGE, pool)
    if operation.HasField("response"):
        retype(operation.response, _PACKAGE, pool)
