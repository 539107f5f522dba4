"""A channel of gRPC whose service is in this process: no server, no thread, no port.

It stands where `grpc.insecure_channel` would stand. The clients above it are the official ones, and
what passes are the bytes of their messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud import datastore_v1
from google.cloud.datastore_v1.services.datastore.transports import DatastoreGrpcTransport
from google.cloud.tasks_v2 import CloudTasksClient
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from benchmarks.memory.service import MemoryDatastore, RefusedError
from rollforward.local.cloudtasks.server.grpc.answers import Failure, method_of, respond
from rollforward.local.cloudtasks.server.versions import Versions
from rollforward.runtime.channel.failed_call import FailedCall

# Answers the bytes of a request to a method, or raises `RefusedError`.
Service = Callable[[str, bytes], bytes]
ADDRESS = "simulated.invalid:1"


class InProcessChannel(grpc.Channel):  # type: ignore[misc]
    """A channel to a service in this process."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool | None = None,
    ) -> Any:
        return _Call(self._service, method, request_serializer, response_deserializer)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError("a call with a stream")

    stream_unary = stream_stream = unary_stream

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Do nothing: the connection does not change."""

    def unsubscribe(self, callback: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> InProcessChannel:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""


class _Call:
    """A method of a channel."""

    def __init__(self, service: Service, method: str, serialize: Any, deserialize: Any) -> None:
        self._service, self._method = service, method
        self._serialize, self._deserialize = serialize, deserialize

    def __call__(self, request: Any, **options: Any) -> Any:
        try:
            return self._deserialize(self._service(self._method, self._serialize(request)))
        except RefusedError as error:
            raise FailedCall(error.code, str(error)) from None

    def with_call(self, request: Any, **options: Any) -> tuple[Any, Any]:
        return self(request), _Ended()

    def future(self, request: Any, **options: Any) -> Any:
        future: Future[Any] = Future()
        try:
            future.set_result(self(request))
        except FailedCall as error:
            return error
        return future


class _Ended:
    """A call that went well, as interceptors ask about it."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def details(self) -> str:
        return ""

    def initial_metadata(self) -> tuple[()]:
        return ()

    trailing_metadata = initial_metadata


def of_datastore(current: Callable[[], MemoryDatastore]) -> Service:
    """Return the service of a store; a test may put another one in its place."""
    requests = {
        name: getattr(datastore_v1.types, f"{name}Request").pb()
        for name in MemoryDatastore().methods()
    }

    def service(method: str, message: bytes) -> bytes:
        name = method.rpartition("/")[2]
        request = requests[name].FromString(message)
        return bytes(current().methods()[name](request).SerializeToString())

    return service


def of_cloud_tasks(engine: Any) -> Service:
    """Return the service of the local platform's queues."""
    versions = Versions(engine)

    def service(path: str, message: bytes) -> bytes:
        method = method_of(versions, path)
        if method is None:
            raise RefusedError(grpc.StatusCode.UNIMPLEMENTED, f"there is no {path}")
        with engine.lock:
            answered = respond(method, message)
        if isinstance(answered, Failure):
            raise RefusedError(answered.code, answered.message)
        return answered

    return service


def datastore_stub(service: Service, interceptors: Sequence[Any] = ()) -> DatastoreGrpcTransport:
    """Return the stub that ndb calls."""
    channel = grpc.intercept_channel(InProcessChannel(service), *interceptors)
    return DatastoreGrpcTransport(host=ADDRESS, credentials=AnonymousCredentials(), channel=channel)


def tasks_client(service: Service, interceptors: Sequence[Any] = ()) -> CloudTasksClient:
    """Return the official client of Cloud Tasks."""
    channel = grpc.intercept_channel(InProcessChannel(service), *interceptors)
    return CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
