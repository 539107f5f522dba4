"""Answers to calls, in the bytes that gRPC sends."""

import logging
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from rollforward.local.cloudtasks.delivery.statuses import code_number
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.server.front import MAX_MESSAGE_BYTES
from rollforward.local.cloudtasks.server.methods import Method
from rollforward.local.cloudtasks.server.versions import Versions

OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """The status of a call that has no response.

    Attributes:
        metadata: Carries the details of the error, if there are any.
    """

    code: grpc.StatusCode
    message: str
    metadata: tuple[tuple[str, bytes], ...] = ()


FAILED = Failure(grpc.StatusCode.INTERNAL, "The emulator failed; see its log.")


def respond(method: Method, message: bytes) -> bytes | Failure:
    """Return the response to a request, or the refusal. Callers hold the engine's lock."""
    try:
        request = method.request.FromString(message)
    except DecodeError:
        name = method.request.DESCRIPTOR.name
        return Failure(grpc.StatusCode.INTERNAL, f"The request is no message of type {name}.")
    try:
        # Another call may change the message as soon as the lock is free.
        response: bytes = method.call(request).SerializeToString()
    except Refused as refused:
        return Failure(grpc.StatusCode[refused.code], refused.message, _details(refused))
    except Exception:
        log.exception("Call failed: %s", method.request.DESCRIPTOR.name)
        return FAILED
    else:
        return response


def _details(refused: Refused) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata that carries the details, if there are any."""
    if not refused.details:
        return ()
    status = status_pb2.Status(code=code_number(refused.code), message=refused.message)
    for detail in refused.details:
        status.details.add().Pack(detail)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def method_of(versions: Versions, path: str) -> Method | None:
    """Return the method of `/service/method`, None if it does not exist."""
    root, _, rest = path.partition("/")
    service, _, name = rest.partition("/")
    return None if root else versions.service(service).get(name)
