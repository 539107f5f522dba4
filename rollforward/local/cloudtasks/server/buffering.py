"""BufferTask: a task with a body only, for a queue whose HTTP target has the rest.

Source: cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues.tasks/buffer
"""

from typing import Any

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.protocol.messages import UriOverride


def buffer(engine: Engine, request: Any) -> Any:
    """Create a task with this body, and return it.

    Raises:
        Refused: FAILED_PRECONDITION: the queue has no HTTP target with a host; and all refusals of
            CreateTask.
    """
    target = engine.queues.get(request.queue).http_target
    if not target.uri_override.host:
        raise Refused(
            "FAILED_PRECONDITION", "The queue must have an http_target with a uri_override.host."
        )
    task = messages.Task()
    if request.task_id:
        task.name = f"{request.queue}/tasks/{request.task_id}"
    http = task.http_request
    http.url = _url(target.uri_override)
    http.http_method = target.http_method
    http.body = request.body.data
    if request.body.content_type:
        http.headers["Content-Type"] = request.body.content_type
    return engine.tasks.create(request.queue, task)


def _url(override: Any) -> str:
    scheme = "http" if override.scheme == UriOverride.Scheme.HTTP else "https"
    port = f":{override.port}" if override.HasField("port") else ""
    path = override.path_override.path
    query = override.query_override.query_params
    slash = "" if path.startswith("/") else "/"
    return f"{scheme}://{override.host}{port}{slash}{path}{'?' + query if query else ''}"
