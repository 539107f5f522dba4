"""The v2 API over gRPC: each method is one call of the engine, and its refusals.

Served: google.cloud.tasks.v2.CloudTasks, google.longrunning.Operations and
google.cloud.location.Locations. IAM and encryption keys are answered with
UNIMPLEMENTED: nothing on this machine would enforce them.

gRPC only. The service speaks REST on the same port. Here an HTTP/1 client gets a closed connection,
because gRPC's server answers nothing else. A proxy that tells both apart would have to carry all
calls.
"""

import logging
from collections.abc import Callable
from typing import Any

import grpc
from google.cloud.location import locations_pb2
from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2
from google.rpc import status_pb2

from rollforward.local.cloudtasks.delivery.statuses import code_number
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import errors, messages
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.server.batches import Batches

# A batch may hold 100 tasks of 1 MiB.
MAX_MESSAGE_BYTES = 128 * 1024 * 1024

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Two servers on one port would each get half of the calls.
    ("grpc.so_reuseport", 0),
]

log = logging.getLogger(__name__)

Handler = Callable[[Any], Any]


def create_server(engine: Engine) -> Any:
    """Return a grpc.aio server with all services, not yet bound to a port."""
    server = grpc.aio.server(options=_OPTIONS)
    batches = Batches(engine)
    for service, methods in (
        ("google.cloud.tasks.v2.CloudTasks", _cloud_tasks(engine, batches)),
        ("google.longrunning.Operations", _operations(engine, batches)),
        ("google.cloud.location.Locations", _locations(engine)),
    ):
        handlers = {
            name: _unary(call, request, response)
            for name, (call, request, response) in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    return server


def _unary(call: Handler, request_type: Any, response_type: Any) -> Any:
    async def handle(request: Any, context: Any) -> Any:
        try:
            return call(request)
        except Refused as refused:
            code = grpc.StatusCode[refused.code]
            await context.abort(code, refused.message, trailing_metadata=_details(refused))
        except Exception:
            log.exception("Call failed: %s", request_type.DESCRIPTOR.name)
            await context.abort(grpc.StatusCode.INTERNAL, "The emulator failed; see its log.")

    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=request_type.FromString,
        response_serializer=response_type.SerializeToString,
    )


def _details(refused: Refused) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata that carries the details, if there are any."""
    if not refused.details:
        return ()
    status = status_pb2.Status(code=code_number(refused.code), message=refused.message)
    for detail in refused.details:
        status.details.add().Pack(detail)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def _cloud_tasks(engine: Engine, batches: Batches) -> dict[str, tuple[Handler, Any, Any]]:
    return _queue_methods(engine) | _task_methods(engine, batches) | _unserved_methods()


def _queue_methods(engine: Engine) -> dict[str, tuple[Handler, Any, Any]]:
    of, queue, empty = messages.request, messages.Queue, empty_pb2.Empty
    page = of("ListQueuesResponse")

    def list_queues(r: Any) -> Any:
        queues, token = engine.queues.page(r.parent, r.filter, r.page_size, r.page_token)
        return page(queues=queues, next_page_token=token)

    def delete_queue(r: Any) -> Any:
        engine.queues.delete(r.name)
        return empty()

    return {
        "ListQueues": (list_queues, of("ListQueuesRequest"), page),
        "GetQueue": (lambda r: engine.queues.get(r.name), of("GetQueueRequest"), queue),
        "CreateQueue": (
            lambda r: engine.queues.create(r.parent, r.queue),
            of("CreateQueueRequest"),
            queue,
        ),
        "UpdateQueue": (
            lambda r: engine.queues.update(r.queue, r.update_mask.paths),
            of("UpdateQueueRequest"),
            queue,
        ),
        "DeleteQueue": (delete_queue, of("DeleteQueueRequest"), empty),
        "PurgeQueue": (lambda r: engine.queues.purge(r.name), of("PurgeQueueRequest"), queue),
        "PauseQueue": (lambda r: engine.queues.pause(r.name), of("PauseQueueRequest"), queue),
        "ResumeQueue": (lambda r: engine.queues.resume(r.name), of("ResumeQueueRequest"), queue),
    }


def _task_methods(engine: Engine, batches: Batches) -> dict[str, tuple[Handler, Any, Any]]:
    of, task, empty = messages.request, messages.Task, empty_pb2.Empty
    operation, page = operations_pb2.Operation, of("ListTasksResponse")

    def list_tasks(r: Any) -> Any:
        tasks, token = engine.tasks.page(r.parent, r.response_view, r.page_size, r.page_token)
        return page(tasks=tasks, next_page_token=token)

    def delete_task(r: Any) -> Any:
        engine.tasks.delete(r.name)
        return empty()

    return {
        "ListTasks": (list_tasks, of("ListTasksRequest"), page),
        "GetTask": (
            lambda r: engine.tasks.get(r.name, r.response_view),
            of("GetTaskRequest"),
            task,
        ),
        "CreateTask": (
            lambda r: engine.tasks.create(r.parent, r.task, r.response_view),
            of("CreateTaskRequest"),
            task,
        ),
        "DeleteTask": (delete_task, of("DeleteTaskRequest"), empty),
        "RunTask": (
            lambda r: engine.tasks.run(r.name, r.response_view),
            of("RunTaskRequest"),
            task,
        ),
        "BatchCreateTasks": (batches.create, of("BatchCreateTasksRequest"), operation),
        "BatchDeleteTasks": (batches.delete, of("BatchDeleteTasksRequest"), operation),
    }


def _unserved_methods() -> dict[str, tuple[Handler, Any, Any]]:
    """Return the methods that are answered with a clear no."""
    of = messages.request
    iam = _unserved("This emulator has no IAM: every caller may do everything.")
    keys = _unserved("This emulator stores tasks unencrypted: there is no CMEK configuration.")
    policy = policy_pb2.Policy
    return {
        "GetIamPolicy": (iam, iam_policy_pb2.GetIamPolicyRequest, policy),
        "SetIamPolicy": (iam, iam_policy_pb2.SetIamPolicyRequest, policy),
        "TestIamPermissions": (
            iam,
            iam_policy_pb2.TestIamPermissionsRequest,
            iam_policy_pb2.TestIamPermissionsResponse,
        ),
        "GetCmekConfig": (keys, of("GetCmekConfigRequest"), messages.CmekConfig),
        "UpdateCmekConfig": (keys, of("UpdateCmekConfigRequest"), messages.CmekConfig),
    }


def _unserved(message: str) -> Handler:
    def refuse(request: Any) -> Any:
        raise Refused("UNIMPLEMENTED", message)

    return refuse


def _operations(engine: Engine, batches: Batches) -> dict[str, tuple[Handler, Any, Any]]:
    pb, empty = operations_pb2, empty_pb2.Empty

    def list_operations(r: Any) -> Any:
        return pb.ListOperationsResponse(operations=batches.list())

    def delete_operation(r: Any) -> Any:
        batches.delete_operation(r.name)
        return empty()

    def cancel(r: Any) -> Any:
        batches.get(r.name)  # What is done cannot be cancelled; the call says nothing.
        return empty()

    return {
        "GetOperation": (lambda r: batches.get(r.name), pb.GetOperationRequest, pb.Operation),
        "WaitOperation": (lambda r: batches.get(r.name), pb.WaitOperationRequest, pb.Operation),
        "ListOperations": (
            list_operations,
            pb.ListOperationsRequest,
            pb.ListOperationsResponse,
        ),
        "DeleteOperation": (delete_operation, pb.DeleteOperationRequest, empty),
        "CancelOperation": (cancel, pb.CancelOperationRequest, empty),
    }


def _locations(engine: Engine) -> dict[str, tuple[Handler, Any, Any]]:
    pb, place = locations_pb2, engine.place
    location = pb.Location(
        name=place.parent, location_id=place.location, display_name=place.location
    )

    def list_locations(r: Any) -> Any:
        if r.name != f"projects/{place.project}":
            raise errors.permission_denied(r.name.removeprefix("projects/"))
        return pb.ListLocationsResponse(locations=[location])

    def get_location(r: Any) -> Any:
        place.check_parent(r.name)
        return location

    return {
        "ListLocations": (list_locations, pb.ListLocationsRequest, pb.ListLocationsResponse),
        "GetLocation": (get_location, pb.GetLocationRequest, pb.Location),
    }
