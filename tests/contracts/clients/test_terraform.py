"""The calls of Terraform's provider for Google, in the order and the form in which it sends them.

Written down from its source, of 2026: the resource `google_cloud_tasks_queue` and its policies,
`resource_cloud_tasks_queue.go` and `iam_cloud_tasks_queue.go`. Each call has `alt=json` in its
query. Values that were read go back with the next update, output-only ones included.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.contracts.clients.rest import call
from tests.contracts.conftest import PARENT, Cloud

pytestmark = pytest.mark.fast

QUEUE = f"{PARENT}/queues/infra"
CREATED = {
    "name": QUEUE,
    "appEngineRoutingOverride": {"service": "worker", "version": "1.0"},
    "rateLimits": {"maxConcurrentDispatches": 3, "maxDispatchesPerSecond": 2},
    "retryConfig": {
        "maxAttempts": 5,
        "maxBackoff": "3s",
        "maxDoublings": 1,
        "maxRetryDuration": "4s",
        "minBackoff": "2s",
    },
    "stackdriverLoggingConfig": {"samplingRatio": 0.9},
}
HTTP_TARGET = {
    "httpMethod": "POST",
    "uriOverride": {
        "scheme": "HTTPS",
        "host": "oidc.example.com",
        "port": "8443",
        "pathOverride": {"path": "/users/1234"},
        "queryOverride": {"queryParams": "qparam1=123&qparam2=456"},
        "uriOverrideEnforceMode": "IF_NOT_EXISTS",
    },
    "headerOverrides": [{"header": {"key": "AddSomethingElse", "value": "MyOtherValue"}}],
    "oidcToken": {"serviceAccountEmail": "a@b.iam", "audience": "https://oidc.example.com"},
}

Terraform = Callable[..., Any]


@pytest.fixture
def terraform(cloud: Cloud) -> Terraform:
    """Make a call of the provider's; return its status and content."""
    headers = {"Content-Type": "application/json", "User-Agent": "Terraform/1.9.8"}

    def send(verb: str, path: str, body: Any = None, query: str = "") -> tuple[int, Any]:
        address = f"/v2/{path}?alt=json{query}"
        return call(cloud.emulator.grpc_address, verb, address, body, headers)

    return send


def test_a_queue_from_apply_to_destroy(terraform: Terraform) -> None:
    """Each read after a write shows what was written, so that a plan finds no difference."""
    status, created = terraform("POST", f"{PARENT}/queues", CREATED)
    assert (status, terraform("GET", QUEUE)) == (200, (200, created))
    for field in ("rateLimits", "retryConfig", "stackdriverLoggingConfig"):
        assert created[field].items() >= CREATED[field].items()
    assert created["state"] == "RUNNING"

    changed = {
        "rateLimits": created["rateLimits"] | {"maxDispatchesPerSecond": 100},
        "retryConfig": created["retryConfig"] | {"maxAttempts": -1},
        "stackdriverLoggingConfig": created["stackdriverLoggingConfig"],
    }
    mask = "&updateMask=rateLimits%2CretryConfig"
    assert terraform("PATCH", QUEUE, changed, mask)[0] == 200
    read = terraform("GET", QUEUE)[1]
    assert read["rateLimits"]["maxDispatchesPerSecond"] == 100
    assert read["retryConfig"] == created["retryConfig"] | {"maxAttempts": -1}

    assert terraform("PATCH", QUEUE, {}, "&updateMask=appEngineRoutingOverride")[0] == 200
    assert "appEngineRoutingOverride" not in terraform("GET", QUEUE)[1]
    assert terraform("POST", f"{QUEUE}:pause")[1]["state"] == "PAUSED"
    assert terraform("POST", f"{QUEUE}:resume")[1]["state"] == "RUNNING"
    assert terraform("DELETE", QUEUE) == (200, {})
    status, content = terraform("GET", QUEUE)
    assert (status, content["error"]["status"]) == (404, "NOT_FOUND")


def test_an_http_target(terraform: Terraform) -> None:
    """A port is a text in JSON, and an update takes the whole target."""
    body = {"name": QUEUE, "httpTarget": HTTP_TARGET}
    created = terraform("POST", f"{PARENT}/queues", body)[1]
    changed = HTTP_TARGET | {"httpMethod": "PUT", "headerOverrides": []}

    assert created["httpTarget"] == HTTP_TARGET
    assert terraform("PATCH", QUEUE, {"httpTarget": changed}, "&updateMask=httpTarget")[0] == 200
    target = terraform("GET", QUEUE)[1]["httpTarget"]
    assert target == {
        field: value for field, value in changed.items() if field != "headerOverrides"
    }


def test_bindings_of_a_policy(terraform: Terraform) -> None:
    """A member is added to what was read, and a policy that changed meanwhile is read again."""
    terraform("POST", f"{PARENT}/queues", {"name": QUEUE})
    binding = {"role": "roles/cloudtasks.enqueuer", "members": ["user:a@example.com"]}
    read = terraform("POST", f"{QUEUE}:getIamPolicy")[1]
    wanted = {"bindings": [binding], "etag": read["etag"], "version": 1}
    status, stored = terraform("POST", f"{QUEUE}:setIamPolicy", {"policy": wanted})

    assert (status, stored["bindings"], stored["version"]) == (200, [binding], 1)
    assert terraform("POST", f"{QUEUE}:getIamPolicy")[1] == stored
    status, content = terraform("POST", f"{QUEUE}:setIamPolicy", {"policy": wanted})
    assert (status, content["error"]["status"]) == (409, "ABORTED")
    removed = {"etag": stored["etag"], "version": 1}
    emptied = terraform("POST", f"{QUEUE}:setIamPolicy", {"policy": removed})[1]
    assert "bindings" not in emptied
    assert terraform("POST", f"{QUEUE}:getIamPolicy")[1] == emptied
