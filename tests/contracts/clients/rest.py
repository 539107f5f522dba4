"""REST calls of the emulator: by the official client, and by hand."""

import http.client
import json
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksRestTransport


def rest_client(address: str) -> tasks_v2.CloudTasksClient:
    """Return the official client, which speaks REST to an emulator."""
    transport = CloudTasksRestTransport(
        host=address, url_scheme="http", credentials=AnonymousCredentials()
    )
    return tasks_v2.CloudTasksClient(transport=transport)


def call(
    address: str, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Call an address of the API; return status and JSON.

    Args:
        body: JSON, or bytes that are sent as they are.
    """
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(verb, path, data, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
