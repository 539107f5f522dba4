"""The official client of v2beta2, or of the version whose `Client` the test's module declares."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials

from tests.contracts.clients import beta2
from tests.contracts.conftest import Cloud


@pytest.fixture(params=["grpc", "rest"])
def client(request: pytest.FixtureRequest, cloud: Cloud) -> Iterator[Any]:
    """The official client, over gRPC and over REST."""
    kind = getattr(request.module, "Client", beta2.Client)
    transport = kind.get_transport_class(request.param)
    address = cloud.emulator.grpc_address
    if request.param == "rest":
        over_rest = transport(host=address, url_scheme="http", credentials=AnonymousCredentials())
        with kind(transport=over_rest) as client:
            yield client
        return
    with grpc.insecure_channel(address) as channel:
        yield kind(transport=transport(channel=channel))
