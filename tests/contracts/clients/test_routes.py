"""Every address of the REST API, as the official clients have it, calls its method."""

import contextlib
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from rollforward.local.cloudtasks.server.rest.routes import call_of
from rollforward.local.cloudtasks.server.versions import NAMES, Versions
from tests.rollforward.local.cloudtasks.engines import make_engine

pytestmark = pytest.mark.fast

PREFIX = "_Base"
# Served, and not called by the client for Python.
OTHERS = {
    "BufferTask", "CancelOperation", "DeleteOperation", "ListOperations", "WaitOperation",
}  # fmt: skip


def addresses_of(transport: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of each method of a client, with its address."""
    for name, method in vars(transport).items():
        # UploadQueueYaml has a class there, and no address.
        if name.startswith(PREFIX) and hasattr(method, "_get_http_options"):
            [address] = method._get_http_options()
            yield name.removeprefix(PREFIX), address


@pytest.mark.parametrize("version", NAMES)
def test_every_address_of_a_version(version: str) -> None:
    """Verb, path, the field that the path fills, and the body are those of the client."""
    module = f"google.cloud.tasks_{version}.services.cloud_tasks.transports.rest_base"
    addresses = dict(addresses_of(import_module(module)._BaseCloudTasksRestTransport))
    with contextlib.closing(make_engine()) as engine:
        served = {*Versions(engine).of(version)}

    assert served - OTHERS == {*addresses}
    for name, address in addresses.items():
        [(field, pattern)] = re.findall(r"\{([a-z_.]+)=([^}]+)\}", address["uri"])
        resource = pattern.replace("*", "x-1")
        path = re.sub(r"\{[^}]+\}", resource, address["uri"])
        call = call_of(address["method"].upper(), path)
        assert call is not None, address
        assert (call.version, call.route.method, call.resource) == (version, name, resource)
        assert (call.route.field, call.route.body) == (field, address.get("body", "")), address
