"""The addresses of the REST API: the method of each verb and path, and the place of its fields.

    POST /v2/projects/p/locations/l/queues/q/tasks    CreateTask, parent in the path, JSON body
    POST /v2/projects/p/locations/l/queues/q:pause    PauseQueue, name in the path

Source: cloud.google.com/tasks/docs/reference/rest, and the `google.api.http` rules of the API.
"""

from dataclasses import dataclass
from urllib.parse import unquote

_PROJECT = "projects/*"
_LOCATION = f"{_PROJECT}/locations/*"
_QUEUE = f"{_LOCATION}/queues/*"
_TASK = f"{_QUEUE}/tasks/*"
_OPERATION = f"{_LOCATION}/operations/*"
_KEY = f"{_LOCATION}/cmekConfig"
ALL = "*"


@dataclass(frozen=True)
class Route:
    """The method that a verb and a path call.

    Attributes:
        field: The field of the request that the path fills, with dots where it is nested.
        body: The field that the body fills, "*" for the request itself, "" for none.
    """

    method: str
    field: str
    body: str = ""


@dataclass(frozen=True)
class Call:
    """A request to an address of the API.

    Attributes:
        version: "" if the address has none, as from Firebase's Admin SDK.
    """

    version: str
    route: Route
    resource: str
    task_id: str = ""


_ROUTES = {
    ("GET", f"{_PROJECT}/locations"): Route("ListLocations", "name"),
    ("GET", _LOCATION): Route("GetLocation", "name"),
    ("GET", f"{_LOCATION}/queues"): Route("ListQueues", "parent"),
    ("POST", f"{_LOCATION}/queues"): Route("CreateQueue", "parent", "queue"),
    ("GET", _QUEUE): Route("GetQueue", "name"),
    ("PATCH", _QUEUE): Route("UpdateQueue", "queue.name", "queue"),
    ("DELETE", _QUEUE): Route("DeleteQueue", "name"),
    ("POST", f"{_QUEUE}:pause"): Route("PauseQueue", "name", ALL),
    ("POST", f"{_QUEUE}:resume"): Route("ResumeQueue", "name", ALL),
    ("POST", f"{_QUEUE}:purge"): Route("PurgeQueue", "name", ALL),
    ("POST", f"{_QUEUE}:getIamPolicy"): Route("GetIamPolicy", "resource", ALL),
    ("POST", f"{_QUEUE}:setIamPolicy"): Route("SetIamPolicy", "resource", ALL),
    ("POST", f"{_QUEUE}:testIamPermissions"): Route("TestIamPermissions", "resource", ALL),
    ("GET", f"{_QUEUE}/tasks"): Route("ListTasks", "parent"),
    ("POST", f"{_QUEUE}/tasks"): Route("CreateTask", "parent", ALL),
    ("POST", f"{_QUEUE}/tasks:batchCreate"): Route("BatchCreateTasks", "parent", ALL),
    ("POST", f"{_QUEUE}/tasks:batchDelete"): Route("BatchDeleteTasks", "parent", ALL),
    ("POST", f"{_QUEUE}/tasks:buffer"): Route("BufferTask", "queue", ALL),
    ("POST", f"{_QUEUE}/tasks:lease"): Route("LeaseTasks", "parent", ALL),
    ("POST", f"{_TASK}:acknowledge"): Route("AcknowledgeTask", "name", ALL),
    ("POST", f"{_TASK}:renewLease"): Route("RenewLease", "name", ALL),
    ("POST", f"{_TASK}:cancelLease"): Route("CancelLease", "name", ALL),
    ("GET", _TASK): Route("GetTask", "name"),
    ("DELETE", _TASK): Route("DeleteTask", "name"),
    ("POST", f"{_TASK}:run"): Route("RunTask", "name", ALL),
    ("POST", f"{_TASK}:buffer"): Route("BufferTask", "queue", ALL),
    ("GET", _KEY): Route("GetCmekConfig", "name"),
    ("PATCH", _KEY): Route("UpdateCmekConfig", "cmek_config.name", "cmek_config"),
    ("GET", f"{_LOCATION}/operations"): Route("ListOperations", "name"),
    ("GET", _OPERATION): Route("GetOperation", "name"),
    ("DELETE", _OPERATION): Route("DeleteOperation", "name"),
    ("POST", f"{_OPERATION}:cancel"): Route("CancelOperation", "name", ALL),
    ("POST", f"{_OPERATION}:wait"): Route("WaitOperation", "name", ALL),
}


def call_of(verb: str, raw_path: str) -> Call | None:
    """Return the call that a request makes, None if the API lacks the address.

    Args:
        raw_path: The path as it was sent, percent-encoded.

    >>> call_of("POST", "/v2/projects/p/locations/l/queues/q:pause")
    Call(version='v2', route=Route(method='PauseQueue', field='name', body='*'), \
resource='projects/p/locations/l/queues/q', task_id='')
    """
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    version = "" if parts[0] == "projects" else parts.pop(0)
    if not parts:
        return None
    parts[-1], colon, action = (
        parts[-1].rpartition(":") if ":" in parts[-1] else (parts[-1], "", "")
    )
    shape = "/".join(part if index % 2 == 0 else "*" for index, part in enumerate(parts))
    route = _ROUTES.get((verb, shape + colon + action))
    if route is None:
        return None
    is_resource = len(parts) % 2 == 0 or shape == _KEY
    if route.method == "BufferTask":
        return Call(version, route, "/".join(parts[:6]), parts[-1] if is_resource else "")
    return Call(version, route, "/".join(parts if is_resource else parts[:-1]))
