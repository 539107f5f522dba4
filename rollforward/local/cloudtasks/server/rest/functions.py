"""Tasks of Firebase's Admin SDK, whose URL is the function's that their queue is named after.

The SDK leaves the URL empty when it speaks to an emulator, unless the caller passes a `uri`, and
sends no version. The function's address has the form of Firebase's functions emulator.

Source: firebase-admin for Node 13.9, `functions-api-client-internal`; firebase-tools,
`FunctionsEmulator.getHttpFunctionUrl`.
"""

from typing import Any

from rollforward.local.cloudtasks.protocol import errors

# The port of Firebase's functions emulator.
DEFAULT_URL = "http://127.0.0.1:5001"
_PARTS = 6  # Of a queue's name.


def fill_url(request: Any, functions_url: str) -> None:
    """Give the task of a CreateTask request its function's URL, if it has none.

    >>> from rollforward.local.cloudtasks.protocol import messages
    >>> request = messages.request("CreateTaskRequest")(
    ...     parent="projects/p/locations/l/queues/resize", task={"http_request": {"body": b"{}"}}
    ... )
    >>> fill_url(request, "http://127.0.0.1:5001")
    >>> request.task.http_request.url
    'http://127.0.0.1:5001/p/l/resize'

    Raises:
        Refused: INVALID_ARGUMENT: the queue's name has a slash too many.
    """
    if request.task.HasField("http_request") and not request.task.http_request.url:
        parts = request.parent.split("/")
        if len(parts) != _PARTS:
            raise errors.queue_name_malformed()
        _, project, _, location, _, function = parts
        place = f"{project}/{location}/{function}"
        request.task.http_request.url = f"{functions_url.rstrip('/')}/{place}"
