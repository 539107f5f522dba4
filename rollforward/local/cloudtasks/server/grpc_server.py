"""The API over gRPC, with the codes, words and details of the service.

The first connection of gRPC loads this module: gRPC takes as long to load as the engine does, and
a quarter of the memory.
"""

import logging
from typing import Any

import grpc
from google.rpc import status_pb2

from rollforward.local.cloudtasks.delivery.statuses import code_number
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.server.front import GRPC_HOST, MAX_MESSAGE_BYTES
from rollforward.local.cloudtasks.server.methods import Method
from rollforward.local.cloudtasks.server.versions import Versions

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]

log = logging.getLogger(__name__)


async def start_server(versions: Versions) -> tuple[Any, int]:
    """Start a grpc.aio server with all services; return it, and its port."""
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((_Services(versions),))
    port = server.add_insecure_port(f"{GRPC_HOST}:0")
    await server.start()
    return server, port


class _Services(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of each call."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._handlers: dict[str, Any] = {}

    def service(self, call_details: Any) -> Any:
        """Return the handler of `/service/method`, None if there is no such method."""
        path: str = call_details.method
        if path not in self._handlers:
            _, service, name = path.split("/")
            method = self._versions.service(service).get(name)
            if method is None:
                return None
            self._handlers[path] = _unary(method)
        return self._handlers[path]


def _unary(method: Method) -> Any:
    async def handle(request: Any, context: Any) -> Any:
        try:
            return method.call(request)
        except Refused as refused:
            code = grpc.StatusCode[refused.code]
            await context.abort(code, refused.message, trailing_metadata=_details(refused))
        except Exception:
            log.exception("Call failed: %s", method.request.DESCRIPTOR.name)
            await context.abort(grpc.StatusCode.INTERNAL, "The emulator failed; see its log.")

    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=method.request.FromString,
        response_serializer=method.response.SerializeToString,
    )


def _details(refused: Refused) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata that carries the details, if there are any."""
    if not refused.details:
        return ()
    status = status_pb2.Status(code=code_number(refused.code), message=refused.message)
    for detail in refused.details:
        status.details.add().Pack(detail)
    return (("grpc-status-details-bin", status.SerializeToString()),)
