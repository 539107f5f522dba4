"""What a handler received, for the tests of requests and tokens."""

import json
import urllib.request
from typing import Any

from tests.contracts.conftest import Cloud, Handler, Received

ACCOUNT = "worker@demo-local.iam.gserviceaccount.com"


def received(cloud: Cloud, handler: Handler, path: str = "/ok", **task: Any) -> Received:
    """Create a task and return the one request that the handler got for it."""
    cloud.create(**task)
    cloud.settle()
    (request,) = handler.received[path]
    return request


def get_json(url: str) -> Any:
    """Return the JSON at an address."""
    with urllib.request.urlopen(url) as response:
        return json.load(response)
