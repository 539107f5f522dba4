"""The messages of BufferTask, which the client library for Python does not have.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2beta3
"""

from typing import Any

from google.api import httpbody_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_OPTIONAL = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
_REQUEST, _RESPONSE = "BufferTaskRequest", "BufferTaskResponse"


def buffer_messages(task_type: Any) -> tuple[Any, Any]:
    """Return the classes of request and response, of the version that a class of tasks is of.

    They become the client library's, should it have them one day.
    """
    pool, package = descriptor_pool.Default(), task_type.DESCRIPTOR.file.package
    try:
        pool.FindMessageTypeByName(f"{package}.{_REQUEST}")
    except KeyError:
        pool.AddSerializedFile(_file(task_type.DESCRIPTOR).SerializeToString())
    descriptors = [
        pool.FindMessageTypeByName(f"{package}.{name}") for name in (_REQUEST, _RESPONSE)
    ]
    request, response = map(message_factory.GetMessageClass, descriptors)
    return request, response


def _file(task: Any) -> Any:
    body = httpbody_pb2.HttpBody.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(
        name=f"rollforward/{task.file.package}.buffer_task.proto",
        package=task.file.package,
        syntax="proto3",
        dependency=[task.file.name, body.file.name],
    )
    request, response = (file.message_type.add(name=name) for name in (_REQUEST, _RESPONSE))
    for number, name in enumerate(("queue", "task_id"), 1):
        request.field.add(name=name, number=number, type=_STRING, label=_OPTIONAL)
    for message, name, number, kind in ((request, "body", 3, body), (response, "task", 1, task)):
        type_name = f".{kind.full_name}"
        message.field.add(
            name=name, number=number, type=_MESSAGE, label=_OPTIONAL, type_name=type_name
        )
    return file
