"""Descriptions of remote calls: service, method, subject, and the code that made them.

The line is the innermost one of the app or of its test on the stack. A call that the library makes
on its own account (a relay of the outbox, a receipt of a delivery) names the library's module.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

DATASTORE, TASKS, CACHE, APP = "datastore", "tasks", "cache", "app"
SERVICES = (DATASTORE, TASKS, CACHE, APP)

_LIBRARY = f"{Path(__file__).parents[1]}/"
_KIT = f"{Path(__file__).parent}/"
# Below these the library makes calls on behalf of others.
_CARRIERS = tuple(f"{_LIBRARY}{name}/" for name in ("datastore", "runtime", "testing"))
_INSTALLED = tuple({f"{sysconfig.get_paths()[name]}/" for name in ("stdlib", "purelib", "platlib")})
_ENTRANCES = ("answer", "send")  # Of a delivery and of a request: the kit makes these.
_SHOWN_KINDS = 4
_SHOWN_CHARS = 90


@dataclass(frozen=True)
class RemoteCall:
    """One remote call.

    Attributes:
        name: Its method: "Commit", "CreateTask", "cache.get", "Payments.charge".
        service: One of SERVICES.
        subject: Kinds of entities, a task's path, a key of memcached.
        line: The code that made it: "sales.py:12, in sell: sale.put()".
        delivery: The path of the task whose delivery made it, if one did.
    """

    name: str
    service: str
    subject: str = ""
    line: str = ""
    delivery: str = ""

    @classmethod
    def here(cls, name: str, service: str, subject: str = "") -> RemoteCall:
        """Describe the call that the calling code is about to make."""
        return cls(name, service, subject, caller(sys._getframe(1)))

    def __str__(self) -> str:
        return f"{self.service} {self.name}" + (f" of {self.subject}" if self.subject else "")


def describe(details: Any, request: Any) -> RemoteCall:
    """Describe a call over gRPC."""
    name = details.method.rpartition("/")[2]
    service = DATASTORE if "datastore" in details.method else TASKS
    names = dict.fromkeys(_targets(name, getattr(request, "_pb", request)))
    shown = list(names)[:_SHOWN_KINDS]
    subject = ", ".join([*shown, *(["..."] if len(names) > len(shown) else [])])
    return RemoteCall.here(name, service, subject)


def _targets(name: str, request: Any) -> Iterator[str]:
    """Yield the kinds that a call is about, or the paths of its tasks."""
    match name:
        case "Commit":
            for mutation in request.mutations:
                operation = mutation.WhichOneof("operation")
                changed = getattr(mutation, operation) if operation else None
                if changed is not None:
                    yield _kind(changed if operation == "delete" else changed.key)
        case "Lookup" | "AllocateIds" | "ReserveIds":
            yield from map(_kind, request.keys)
        case "RunQuery":
            yield from (kind.name for kind in request.query.kind)
        case "RunAggregationQuery":
            yield from (kind.name for kind in request.aggregation_query.nested_query.kind)
        case "CreateTask":
            yield _path(request.task)
        case "BatchCreateTasks":
            yield from (_path(one.task) for one in request.requests)


def _kind(key: Any) -> str:
    return str(key.path[-1].kind) if key.path else ""


def _path(task: Any) -> str:
    url = task.http_request.url or task.app_engine_http_request.relative_uri
    return str(urlsplit(url).path)


def is_of_user(file: str) -> bool:
    """Return whether a file is the user's: not of this library, of another one, or of Python."""
    return not (file.startswith((_LIBRARY, *_INSTALLED, "<")) or "/site-packages/" in file)


def caller(frame: FrameType | None) -> str:
    """Return the line of the app, or of its test, that a frame was called from."""
    library = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_KIT) and frame.f_code.co_name in _ENTRANCES:
            break
        if name.startswith(_LIBRARY):
            if not library and not name.startswith(_CARRIERS):
                library = f"rollforward/{name.removeprefix(_LIBRARY)}, in {frame.f_code.co_name}"
        elif is_of_user(name):
            text = linecache.getline(name, frame.f_lineno).strip()
            place = f"{Path(name).name}:{frame.f_lineno}, in {frame.f_code.co_name}"
            return f"{place}: {text[:_SHOWN_CHARS]}" if text else place
        frame = frame.f_back
    return library
