"""The official client of v2beta2; a test of another version has a client of its own."""

from collections.abc import Iterator

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.tasks_v2beta2.services.cloud_tasks.transports import (
    CloudTasksGrpcTransport,
    CloudTasksRestTransport,
)

from tests.contracts.clients.beta2 import Client
from tests.contracts.conftest import Cloud


@pytest.fixture(params=["grpc", "rest"])
def client(request: pytest.FixtureRequest, cloud: Cloud) -> Iterator[Client]:
    """The official client of v2beta2, over gRPC and over REST."""
    address = cloud.emulator.grpc_address
    if request.param == "rest":
        transport = CloudTasksRestTransport(
            host=address, url_scheme="http", credentials=AnonymousCredentials()
        )
        with Client(transport=transport) as client:
            yield client
        return
    with grpc.insecure_channel(address) as channel:
        yield Client(transport=CloudTasksGrpcTransport(channel=channel))
