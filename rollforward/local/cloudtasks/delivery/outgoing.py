"""The request that a handler gets: method, address, headers, body.

Sources: cloud.google.com/tasks/docs/creating-http-target-tasks,
cloud.google.com/tasks/docs/creating-appengine-handlers; the header values were
recorded from the real service by the conformance suite of
aertje/cloud-tasks-emulator (2026).
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from rollforward.local.cloudtasks.delivery.app_engine import AppEngineApp
from rollforward.local.cloudtasks.delivery.tokens import TokenIssuer
from rollforward.local.cloudtasks.protocol.messages import HttpMethod, UriOverride
from rollforward.local.cloudtasks.protocol.names import project_of, short
from rollforward.local.cloudtasks.protocol.validation import is_reserved
from rollforward.local.cloudtasks.store.records import TaskRecord

_SCHEMES = {UriOverride.Scheme.HTTP: "http"}
_DEFAULT_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_BODILESS = {"GET", "HEAD", "DELETE", "OPTIONS"}


@dataclass(frozen=True)
class OutgoingRequest:
    """The request to the handler."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes


def build_request(
    task: TaskRecord, spec: Any, queue: Any, number: int, app: AppEngineApp, tokens: TokenIssuer
) -> OutgoingRequest:
    """Return the request of a task's attempt.

    Args:
        spec: The stored Task message.
        queue: The Queue message, whose overrides apply now.
        number: How many attempts came before this one.
    """
    if task.is_app_engine:
        return _app_engine_request(task, spec.app_engine_http_request, queue, number, app)
    return _http_request(task, spec.http_request, queue, number, tokens)


def _app_engine_request(
    task: TaskRecord, request: Any, queue: Any, number: int, app: AppEngineApp
) -> OutgoingRequest:
    overridden = queue.HasField("app_engine_routing_override")
    routing = queue.app_engine_routing_override if overridden else request.app_engine_routing
    headers = dict(request.headers)
    headers |= _delivery_headers("X-AppEngine-", task, number)
    url = app.address(routing, project_of(task.queue), request.relative_uri)
    return OutgoingRequest(HttpMethod(request.http_method).name, url, headers, request.body)


def _http_request(
    task: TaskRecord, request: Any, queue: Any, number: int, tokens: TokenIssuer
) -> OutgoingRequest:
    target = queue.http_target
    method = HttpMethod(target.http_method or request.http_method).name
    url = request.url
    if target.HasField("uri_override"):
        url = overridden_url(url, target.uri_override)
    headers = dict(request.headers)
    for override in target.header_overrides:
        if not is_reserved(override.header.key) and override.header.key.lower() != "user-agent":
            _replace(headers, override.header.key, override.header.value)
    if authorization := _authorization(request, target, url, tokens):
        _replace(headers, "Authorization", authorization)
    headers |= _delivery_headers("X-CloudTasks-", task, number)
    body = b"" if method in _BODILESS else request.body
    return OutgoingRequest(method, url, headers, body)


def _delivery_headers(prefix: str, task: TaskRecord, number: int) -> dict[str, str]:
    """Return the headers that tell the handler which delivery this is."""
    headers = {
        f"{prefix}QueueName": short(task.queue),
        f"{prefix}TaskName": short(task.name),
        f"{prefix}TaskRetryCount": str(number),
        f"{prefix}TaskExecutionCount": str(task.execution_count),
        f"{prefix}TaskETA": f"{task.schedule_at:.6f}",
    }
    if task.previous_status is not None:
        headers[f"{prefix}TaskPreviousResponse"] = str(task.previous_status)
    if task.retry_reason is not None:
        headers[f"{prefix}TaskRetryReason"] = task.retry_reason
    return headers


def _authorization(request: Any, target: Any, url: str, tokens: TokenIssuer) -> str:
    """Return the Authorization header: the queue's token goes before the task's."""
    source = target if target.WhichOneof("authorization_header") else request
    kind = source.WhichOneof("authorization_header")
    if kind == "oidc_token":
        oidc = source.oidc_token
        token = tokens.oidc_token(oidc.service_account_email, oidc.audience or url)
    elif kind == "oauth_token":
        oauth = source.oauth_token
        token = tokens.access_token(oauth.service_account_email, oauth.scope or _DEFAULT_SCOPE)
    else:
        return ""
    return f"Bearer {token}"


def _replace(headers: dict[str, str], name: str, value: str) -> None:
    """Set a header; it replaces one of the same name in any case."""
    for same in [key for key in headers if key.lower() == name.lower()]:
        del headers[same]
    headers[name] = value


def overridden_url(url: str, override: Any) -> str:
    """Return a task's address after the queue's override.

    In the mode IF_NOT_EXISTS the override fills only the missing parts of the address;
    scheme and host it never lacks.
    """
    parts = urlsplit(url)
    fills_only = (
        override.uri_override_enforce_mode == UriOverride.UriOverrideEnforceMode.IF_NOT_EXISTS
    )
    if not fills_only:
        parts = _scheme_and_host(parts, override)
    if override.HasField("port") and not (fills_only and parts.port):
        parts = parts._replace(netloc=_netloc(parts.hostname or "", override.port))
    if override.HasField("path_override") and not (fills_only and parts.path.strip("/")):
        parts = parts._replace(path=override.path_override.path)
    if override.HasField("query_override") and not (fills_only and parts.query):
        parts = parts._replace(query=override.query_override.query_params)
    return parts.geturl()


def _scheme_and_host(parts: SplitResult, override: Any) -> SplitResult:
    if override.HasField("scheme"):
        parts = parts._replace(scheme=_SCHEMES.get(override.scheme, "https"))
    if override.HasField("host"):
        parts = parts._replace(netloc=_netloc(override.host, parts.port))
    return parts


def _netloc(host: str, port: int | None) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return f"{bracketed}:{port}" if port else bracketed
