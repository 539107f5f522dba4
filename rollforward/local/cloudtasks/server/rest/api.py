"""The API over REST: JSON as the service writes it, and its error bodies.

An address calls the same method as gRPC does. The JSON follows protobuf's mapping and omits fields
at their defaults.
"""

import json
import logging
import re
from typing import Any

from aiohttp import web
from google.protobuf import json_format

from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.server.callers import Callers
from rollforward.local.cloudtasks.server.rest import functions, payloads
from rollforward.local.cloudtasks.server.rest.routes import ALL, Call, call_of
from rollforward.local.cloudtasks.server.versions import NAMES, Versions
from rollforward.local.system.http_bodies import body_of

_HTTP_OF_CODE = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
# Parameters of every Google API; they are no fields of a request.
_SYSTEM_PARAMETERS = {
    "access_token", "alt", "callback", "fields", "key", "oauth_token", "prettyPrint", "quotaUser",
    "uploadType", "upload_protocol",
}  # fmt: skip
_SNAKE = re.compile(r"_([a-z])")

log = logging.getLogger(__name__)


class Rest:
    """The REST API.

    Args:
        versions: The methods of each version.
        functions_url: The address below which the functions of Firebase are.
    """

    def __init__(
        self,
        versions: Versions,
        callers: Callers,
        functions_url: str = functions.DEFAULT_URL,
    ) -> None:
        self._versions = versions
        self._callers = callers
        self._functions_url = functions_url

    def routes(self) -> list[web.RouteDef]:
        """Return the routes, for an aiohttp application."""
        prefixes = [*NAMES, "projects"]
        return [web.route("*", f"/{prefix}/{{rest:.*}}", self.handle) for prefix in prefixes]

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request."""
        try:
            return _json(request, await self._respond(request))
        except Refused as refused:
            return _json(request, _error_of(refused), _HTTP_OF_CODE.get(refused.code, 500))
        except web.HTTPException as error:
            content = _error_of(Refused("INVALID_ARGUMENT", error.reason))
            content["error"]["code"] = error.status
            return _json(request, content, error.status)
        except Exception:
            log.exception("Call failed: %s %.200r", request.method, request.path)
            refused = Refused("INTERNAL", "The emulator failed; see its log.")
            return _json(request, _error_of(refused), 500)

    async def _respond(self, request: web.Request) -> Any:
        if problem := self._callers.reason(request.headers):
            raise Refused("PERMISSION_DENIED", problem)
        call = call_of(request.method, request.rel_url.raw_path)
        methods = self._versions.of(call.version or "v2") if call else {}
        method = methods.get(call.route.method) if call else None
        if call is None or method is None:
            raise Refused("NOT_FOUND", "Method not found.")
        message = payloads.parsed(
            _fields(call, request, await _body(request, call)), method.request()
        )
        if not call.version and call.route.method == "CreateTask":
            functions.fill_url(message, self._functions_url)
        with_numbers = "enum-encoding=int" in request.query.get("$alt", "")
        return json_format.MessageToDict(method.call(message), use_integers_for_enums=with_numbers)


async def _body(request: web.Request, call: Call) -> dict[str, Any]:
    """Return the JSON object that a request carries, which may be none.

    Raises:
        Refused: it is no JSON object, or this address takes none.
    """
    try:
        raw = await body_of(request)
    except ValueError as error:
        raise payloads.bad_request(f"Invalid payload received: {error}.") from None
    if not raw.strip() or not call.route.body:
        return {}
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise payloads.bad_request(f"Invalid JSON payload received. {error}") from None
    if not isinstance(content, dict):
        raise payloads.bad_request("Invalid JSON payload received. The root must be an object.")
    return content


def _fields(call: Call, request: web.Request, body: dict[str, Any]) -> dict[str, Any]:
    """Return the request's fields as JSON: from the body, the query, and last the path."""
    fields: dict[str, Any] = body if call.route.body in (ALL, "") else {call.route.body: body}
    for name in dict.fromkeys(request.query):
        if name not in _SYSTEM_PARAMETERS and not name.startswith("$"):
            values = request.query.getall(name)
            _put(fields, name, values if len(values) > 1 else values[0])
    _put(fields, call.route.field, call.resource)
    if call.task_id:
        _put(fields, "task_id", call.task_id)
    return fields


def _put(fields: dict[str, Any], path: str, value: Any) -> None:
    """Set a field, which may be nested, in place of the one in the body."""
    *outer, last = path.split(".")
    for part in outer:
        inner = fields.setdefault(part, {})
        if not isinstance(inner, dict):
            raise payloads.bad_request(f"Invalid value at '{path}'.")
        fields = inner
    fields.pop(_camel(last), None)
    fields[last] = _mask(value) if _camel(last) in ("updateMask", "readMask") else value


def _camel(name: str) -> str:
    return _SNAKE.sub(lambda match: match[1].upper(), name)


def _mask(value: Any) -> Any:
    """Return a mask as JSON writes it; callers also write the names of protobuf."""
    return _camel(value if isinstance(value, str) else ",".join(value))


def _error_of(refused: Refused) -> dict[str, Any]:
    """Return the body of an error, in the form of all Google APIs."""
    error: dict[str, Any] = {
        "code": _HTTP_OF_CODE.get(refused.code, 500),
        "message": refused.message,
        "status": refused.code,
    }
    if refused.details:
        error["details"] = [
            {"@type": f"type.googleapis.com/{detail.DESCRIPTOR.full_name}"}
            | json_format.MessageToDict(detail)
            for detail in refused.details
        ]
    return {"error": error}


def _json(request: web.Request, content: dict[str, Any], status: int = 200) -> web.Response:
    """Return JSON, indented as the service does unless the caller wants none of it."""
    wish = request.query.get("prettyPrint", request.query.get("$prettyPrint", "true"))
    if wish in ("false", "0"):
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    else:
        text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    return web.Response(
        status=status,
        body=text.encode(errors="replace"),
        content_type="application/json",
        charset="UTF-8",
        headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "private"},
    )
