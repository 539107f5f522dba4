"""The methods of the v2 API: each is one call of the engine, and its refusals.

Served: google.cloud.tasks.v2.CloudTasks, google.longrunning.Operations and
google.cloud.location.Locations. Policies of IAM and configurations of keys are stored and answered;
nothing on this machine enforces them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.cloud.location import locations_pb2
from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.longrunning import operations_proto_pb2 as operations_pb2  # Without gRPC.
from google.protobuf import empty_pb2

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.buffer_messages import buffer_messages
from rollforward.local.cloudtasks.protocol.names import Place, parent_of, short
from rollforward.local.cloudtasks.server.batches import Batches
from rollforward.local.cloudtasks.server.buffering import buffer
from rollforward.local.cloudtasks.server.policies import Policies


@dataclass(frozen=True)
class Method:
    """One method of an API.

    Attributes:
        call: Takes the request's message and returns the response's; it may raise Refused.
    """

    call: Callable[[Any], Any]
    request: Any
    response: Any


Methods = dict[str, Method]


def services(engine: Engine) -> dict[str, Methods]:
    """Return the methods of v2 by their services."""
    batches, policies = Batches(engine), Policies(engine)
    return {
        "google.cloud.tasks.v2.CloudTasks": (
            _queue_methods(engine, policies)
            | _task_methods(engine, batches)
            | _policy_methods(policies)
        ),
        "google.longrunning.Operations": _operations(batches),
        "google.cloud.location.Locations": _locations(engine),
    }


def _queue_methods(engine: Engine, policies: Policies) -> Methods:
    of, queue, empty = messages.request, messages.Queue, empty_pb2.Empty
    page = of("ListQueuesResponse")

    def list_queues(r: Any) -> Any:
        queues, token = engine.queues.page(r.parent, r.filter, r.page_size, r.page_token)
        return page(queues=queues, next_page_token=token)

    def delete_queue(r: Any) -> Any:
        engine.queues.delete(r.name)
        policies.forget(r.name)
        return empty()

    return {
        "ListQueues": Method(list_queues, of("ListQueuesRequest"), page),
        "GetQueue": Method(lambda r: engine.queues.get(r.name), of("GetQueueRequest"), queue),
        "CreateQueue": Method(
            lambda r: engine.queues.create(r.parent, r.queue),
            of("CreateQueueRequest"),
            queue,
        ),
        "UpdateQueue": Method(
            lambda r: engine.queues.update(r.queue, r.update_mask.paths),
            of("UpdateQueueRequest"),
            queue,
        ),
        "DeleteQueue": Method(delete_queue, of("DeleteQueueRequest"), empty),
        "PurgeQueue": Method(lambda r: engine.queues.purge(r.name), of("PurgeQueueRequest"), queue),
        "PauseQueue": Method(lambda r: engine.queues.pause(r.name), of("PauseQueueRequest"), queue),
        "ResumeQueue": Method(
            lambda r: engine.queues.resume(r.name), of("ResumeQueueRequest"), queue
        ),
    }


def _task_methods(engine: Engine, batches: Batches) -> Methods:
    of, task, empty = messages.request, messages.Task, empty_pb2.Empty
    operation, page = operations_pb2.Operation, of("ListTasksResponse")
    buffer_request, buffered = buffer_messages(messages.Task)

    def list_tasks(r: Any) -> Any:
        tasks, token = engine.tasks.page(r.parent, r.response_view, r.page_size, r.page_token)
        return page(tasks=tasks, next_page_token=token)

    def delete_task(r: Any) -> Any:
        engine.tasks.delete(r.name)
        return empty()

    return {
        "ListTasks": Method(list_tasks, of("ListTasksRequest"), page),
        "GetTask": Method(
            lambda r: engine.tasks.get(r.name, r.response_view),
            of("GetTaskRequest"),
            task,
        ),
        "CreateTask": Method(
            lambda r: engine.tasks.create(r.parent, r.task, r.response_view),
            of("CreateTaskRequest"),
            task,
        ),
        "DeleteTask": Method(delete_task, of("DeleteTaskRequest"), empty),
        "RunTask": Method(
            lambda r: engine.tasks.run(r.name, r.response_view),
            of("RunTaskRequest"),
            task,
        ),
        "BufferTask": Method(lambda r: buffered(task=buffer(engine, r)), buffer_request, buffered),
        "BatchCreateTasks": Method(batches.create, of("BatchCreateTasksRequest"), operation),
        "BatchDeleteTasks": Method(batches.delete, of("BatchDeleteTasksRequest"), operation),
    }


def _policy_methods(policies: Policies) -> Methods:
    of, pb = messages.request, iam_policy_pb2
    policy, config = policy_pb2.Policy, messages.CmekConfig
    return {
        "GetIamPolicy": Method(policies.get, pb.GetIamPolicyRequest, policy),
        "SetIamPolicy": Method(policies.set, pb.SetIamPolicyRequest, policy),
        "TestIamPermissions": Method(
            policies.test, pb.TestIamPermissionsRequest, pb.TestIamPermissionsResponse
        ),
        "GetCmekConfig": Method(policies.get_key, of("GetCmekConfigRequest"), config),
        "UpdateCmekConfig": Method(policies.update_key, of("UpdateCmekConfigRequest"), config),
    }


def _operations(batches: Batches) -> Methods:
    pb, empty = operations_pb2, empty_pb2.Empty

    def list_operations(r: Any) -> Any:
        operations = batches.list(r.name.removesuffix("/operations"))
        return pb.ListOperationsResponse(operations=operations)

    def delete_operation(r: Any) -> Any:
        batches.delete_operation(r.name)
        return empty()

    def cancel(r: Any) -> Any:
        batches.get(r.name)  # What is done cannot be cancelled; the call says nothing.
        return empty()

    return {
        "GetOperation": Method(lambda r: batches.get(r.name), pb.GetOperationRequest, pb.Operation),
        "WaitOperation": Method(
            lambda r: batches.get(r.name), pb.WaitOperationRequest, pb.Operation
        ),
        "ListOperations": Method(
            list_operations,
            pb.ListOperationsRequest,
            pb.ListOperationsResponse,
        ),
        "DeleteOperation": Method(delete_operation, pb.DeleteOperationRequest, empty),
        "CancelOperation": Method(cancel, pb.CancelOperationRequest, empty),
    }


def _locations(engine: Engine) -> Methods:
    pb, place = locations_pb2, engine.place

    def location_of(parent: str) -> Any:
        location_id = short(parent)
        return pb.Location(name=parent, location_id=location_id, display_name=location_id)

    def list_locations(r: Any) -> Any:
        own = Place(r.name.removeprefix("projects/"), place.location).parent
        place.check_parent(own)
        parents = {parent_of(queue.name) for queue in engine.queues.all()}
        others = sorted(parent for parent in parents - {own} if parent.startswith(f"{r.name}/"))
        return pb.ListLocationsResponse(locations=map(location_of, [own, *others]))

    def get_location(r: Any) -> Any:
        place.check_parent(r.name)
        return location_of(r.name)

    return {
        "ListLocations": Method(list_locations, pb.ListLocationsRequest, pb.ListLocationsResponse),
        "GetLocation": Method(get_location, pb.GetLocationRequest, pb.Location),
    }
