"""The messages of BufferTask, which the client library for Python does not have.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2beta3
"""

from typing import Any

from google.api import httpbody_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rollforward.local.cloudtasks.protocol import messages

_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_OPTIONAL = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL


def _file() -> Any:
    task, body = messages.Task.DESCRIPTOR, httpbody_pb2.HttpBody.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(
        name="rollforward/buffer_task.proto",
        package=task.file.package,
        syntax="proto3",
        dependency=[task.file.name, body.file.name],
    )
    request = file.message_type.add(name="BufferTaskRequest")
    response = file.message_type.add(name="BufferTaskResponse")
    for number, name in enumerate(("queue", "task_id"), 1):
        request.field.add(name=name, number=number, type=_STRING, label=_OPTIONAL)
    for message, name, number, kind in ((request, "body", 3, body), (response, "task", 1, task)):
        type_name = f".{kind.full_name}"
        message.field.add(
            name=name, number=number, type=_MESSAGE, label=_OPTIONAL, type_name=type_name
        )
    return file


def _class(name: str) -> Any:
    """Return a class of the client library that has it, of ours otherwise."""
    pool = descriptor_pool.Default()
    full_name = f"{messages.Task.DESCRIPTOR.file.package}.{name}"
    try:
        descriptor = pool.FindMessageTypeByName(full_name)
    except KeyError:
        pool.AddSerializedFile(_file().SerializeToString())
        descriptor = pool.FindMessageTypeByName(full_name)
    return message_factory.GetMessageClass(descriptor)


BufferTaskRequest = _class("BufferTaskRequest")
BufferTaskResponse = _class("BufferTaskResponse")
