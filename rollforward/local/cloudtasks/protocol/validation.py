"""Validation of queues and tasks, and the defaults that the service fills in.

Sources: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
and cloud.google.com/tasks/docs/quotas. The words were recorded from the service,
where tests/contracts/test_cloudtasks_recorded.py has them, and else our own.
"""

import math
import re
import string
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlsplit

from rollforward.local.cloudtasks.protocol import errors
from rollforward.local.cloudtasks.protocol.messages import (
    MAX_RATE_PER_S,
    RUNNING,
    HttpMethod,
    Queue,
    Task,
    seconds_of,
    set_seconds,
)
from rollforward.local.cloudtasks.store.records import PullMessage

MAX_SCHEDULE_AHEAD_S = 30 * 86400
# Measured at the service, to the byte, for both kinds of targets; its documents say 1 MB in one
# place and 100 KB for App Engine targets in another.
MAX_STORED_TASK_BYTES = 1024 * 1024 - 7
MAX_HEADERS_BYTES = 80 * 1024
MAX_URL_CHARACTERS = 2083
MAX_CONCURRENT_DISPATCHES = 5000

HTTP_DEADLINES = (15.0, 30 * 60.0, "[15s, 30m]")
APP_ENGINE_DEADLINES = (15.0, 24 * 3600 + 15.0, "[15s, 24h15s]")
DEFAULT_DEADLINE_S = 600.0
DEFAULT_ATTEMPTS = 100
UNLIMITED_ATTEMPTS = -1

HTTP_USER_AGENT = "Google-Cloud-Tasks"
APP_ENGINE_USER_AGENT = "AppEngine-Google; (+http://code.google.com/appengine)"

_METHODS = {method.value for method in HttpMethod}
_HTTP_BODY_METHODS = {HttpMethod.POST, HttpMethod.PUT, HttpMethod.PATCH}
_APP_ENGINE_BODY_METHODS = {HttpMethod.POST, HttpMethod.PUT}
_RESERVED_HEADERS = {
    "host",
    "content-length",
    # How a message travels is the sender's affair (rfc9110#section-7.6.1): beside the length that
    # is sent, a Transfer-Encoding of the caller's would make each delivery a malformed request.
    # What the service does with these is not documented.
    "connection",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",  # codespell:ignore
    "trailer",
    "transfer-encoding",
    "upgrade",
}
_SPACE = re.compile(r"\s")
_RESERVED_PREFIXES = ("x-google-", "x-appengine-", "x-cloudtasks-")
_APP_ENGINE_DOMAIN = ".appspot.com"
_SETTABLE = ("app_engine_routing_override", "http_target", "stackdriver_logging_config")
_TOKENS = ("oidc_token", "oauth_token")
# What a Duration may hold: ten thousand years, in whole seconds and a part of one.
_MAX_DURATION_S = 315_576_000_000
_NANOS = range(1_000_000_000)


# --- queues ---------------------------------------------------------------


def default_burst(rate_per_s: float) -> int:
    """Return the burst the service picks; it is known to be 100 at 500 a second."""
    return int(max(10, min(100, rate_per_s / 5)))


def complete_queue(request: Any, is_pull: bool = False) -> Any:
    """Return a new queue message: what the caller set, and defaults for the rest."""
    queue = Queue(name=request.name, state=RUNNING)
    for field in _SETTABLE:
        if request.HasField(field):
            getattr(queue, field).CopyFrom(getattr(request, field))
    queue.rate_limits.CopyFrom(request.rate_limits)
    queue.retry_config.CopyFrom(request.retry_config)
    _fill_rate_limits(queue.rate_limits)
    queue.retry_config.max_attempts = queue.retry_config.max_attempts or (
        UNLIMITED_ATTEMPTS if is_pull else DEFAULT_ATTEMPTS
    )
    _fill_retry_config(queue.retry_config)
    return queue


def _fill_rate_limits(limits: Any) -> None:
    limits.max_dispatches_per_second = limits.max_dispatches_per_second or 500.0
    limits.max_concurrent_dispatches = limits.max_concurrent_dispatches or 1000
    limits.max_burst_size = default_burst(limits.max_dispatches_per_second)


def _fill_retry_config(config: Any) -> None:
    config.max_doublings = config.max_doublings or 16
    has_min, has_max = config.HasField("min_backoff"), config.HasField("max_backoff")
    min_s = seconds_of(config.min_backoff) if has_min else 0.1
    max_s = seconds_of(config.max_backoff) if has_max else 3600.0
    # A default never contradicts what the caller did set.
    set_seconds(config.min_backoff, min_s if has_min else min(min_s, max_s))
    set_seconds(config.max_backoff, max_s if has_max else max(min_s, max_s))
    if not seconds_of(config.max_retry_duration):
        config.ClearField("max_retry_duration")


def updated_queue(
    current: Any, request: Any, paths: Iterable[str], *, is_pull: bool = False
) -> Any:
    """Return current with the fields named by paths taken from request.

    No paths means every field. A path may reach into a message, like
    retry_config.max_attempts; output-only fields are passed over.

    Raises:
        Refused: INVALID_ARGUMENT: a path names no field of a queue.
    """
    queue = Queue()
    queue.CopyFrom(current)
    for path in list(paths) or [*_SETTABLE, "rate_limits", "retry_config"]:
        _copy_path(queue, request, path)
    _drop_what_is_empty(queue)
    complete = complete_queue(queue, is_pull)
    _keep_explicit_zeros(complete, queue, paths)
    complete.state = current.state
    if current.HasField("purge_time"):
        complete.purge_time.CopyFrom(current.purge_time)
    return complete


def _copy_path(target: Any, source: Any, path: str) -> None:
    """Copy one field, which may be nested, or clear it when source lacks it."""
    *outer, field = path.split(".")
    for part in outer:
        _check_field(target, part, path)
        target, source = getattr(target, part), getattr(source, part)
    descriptor = _check_field(target, field, path)
    if descriptor.is_repeated:
        target.ClearField(field)
        getattr(target, field).extend(getattr(source, field))
        return
    if descriptor.message_type is None:
        setattr(target, field, getattr(source, field))
        return
    target.ClearField(field)
    if source.HasField(field):
        getattr(target, field).CopyFrom(getattr(source, field))


def _check_field(message: Any, field: str, path: str) -> Any:
    descriptor = getattr(message, "DESCRIPTOR", None)
    if descriptor is None or field not in descriptor.fields_by_name:
        raise errors.invalid(f"The update mask names no field of a queue: '{path}'.")
    return descriptor.fields_by_name[field]


def _drop_what_is_empty(queue: Any) -> None:
    """Let a queue have no token, and no target, whose fields a mask has cleared one by one."""
    for kind in _TOKENS:
        if queue.http_target.HasField(kind) and not getattr(queue.http_target, kind).ByteSize():
            queue.http_target.ClearField(kind)
    if not queue.http_target.ByteSize():
        queue.ClearField("http_target")


def _keep_explicit_zeros(complete: Any, queue: Any, paths: Iterable[str]) -> None:
    """Let a mask that names max_doublings set it to zero, which else means 'default'."""
    if "retry_config.max_doublings" in paths:
        complete.retry_config.max_doublings = queue.retry_config.max_doublings


def check_queue(queue: Any) -> None:
    """Refuse settings outside the documented ranges.

    Raises:
        Refused: INVALID_ARGUMENT, naming the field and its bound.
    """
    limits = queue.rate_limits
    rate, concurrent = limits.max_dispatches_per_second, limits.max_concurrent_dispatches
    _check_bounds("RateLimits.maxDispatchesPerSecond", rate, MAX_RATE_PER_S)
    _check_bounds("RateLimits.maxConcurrentDispatches", concurrent, MAX_CONCURRENT_DISPATCHES)
    check_retry_config(queue.retry_config)
    if queue.HasField("http_target"):
        _check_http_target(queue.http_target)


def _check_bounds(field: str, value: float, limit: float = math.inf) -> None:
    if value < 0:
        raise errors.invalid(f"{field} cannot be negative.")
    if not value <= limit:  # NaN is neither less nor more than anything.
        raise errors.invalid(f"{field} must be less than or equal to {limit}.")


def _check_duration(field: str, duration: Any) -> float:
    """Return a Duration in seconds, which REST can show: gRPC brings any numbers."""
    seconds = seconds_of(duration)
    _check_bounds(field, seconds, _MAX_DURATION_S)
    if duration.nanos not in _NANOS:
        raise errors.invalid(f"{field} must have from 0 to {_NANOS[-1]} nanos.")
    return seconds


def check_retry_config(config: Any) -> None:
    """Refuse a retry configuration that contradicts itself.

    Raises:
        Refused: INVALID_ARGUMENT, naming the field.
    """
    if config.max_attempts < -1:
        raise errors.invalid("RetryConfig.maxAttempts must be greater or equal to -1.")
    _check_bounds("RetryConfig.maxDoublings", config.max_doublings)
    _check_duration("RetryConfig.maxRetryDuration", config.max_retry_duration)
    min_s = _check_duration("RetryConfig.minBackoff", config.min_backoff)
    max_s = _check_duration("RetryConfig.maxBackoff", config.max_backoff)
    if config.HasField("min_backoff") and config.HasField("max_backoff") and min_s > max_s:
        raise errors.invalid(
            "RetryConfig.minBackoff must be less than or equal to RetryConfig.maxBackoff."
        )


def _check_http_target(target: Any) -> None:
    override = target.uri_override
    _check_method("Queue.http_target.http_method", target.http_method)
    if override.HasField("host") and not override.host:
        raise errors.invalid("Queue.http_target.uri_override.host must not be empty.")
    if override.HasField("port") and override.port < 0:
        raise errors.invalid("Queue.http_target.uri_override.port must not be negative.")
    if target.HasField("oidc_token") and not (
        target.oidc_token.service_account_email and target.oidc_token.audience
    ):
        raise errors.invalid(
            "Queue.http_target.oidc_token needs both service_account_email and audience."
        )
    if target.HasField("oauth_token") and not (
        target.oauth_token.service_account_email and target.oauth_token.scope
    ):
        raise errors.invalid(
            "Queue.http_target.oauth_token needs both service_account_email and scope."
        )


# --- tasks ----------------------------------------------------------------


def complete_task(request: Any, task: Any, project: str) -> None:
    """Write into task the stored parts of a request: address, body, deadline, retries.

    Raises:
        Refused: INVALID_ARGUMENT: a rule of the reference is broken.
    """
    kind = request.WhichOneof("message_type")
    if kind == "http_request":
        _complete_http(request, task)
    elif kind == "app_engine_http_request":
        _complete_app_engine(request, task, project)
    else:
        raise errors.invalid("Task must have an http_request or an app_engine_http_request.")
    if request.HasField("retry_config"):
        check_retry_config(request.retry_config)
        task.retry_config.CopyFrom(request.retry_config)


def _complete_http(request: Any, task: Any) -> None:
    http = request.http_request
    if not http.url:
        raise errors.invalid("HttpRequest.url is required.")
    if not http.url.startswith(("http://", "https://")):
        raise errors.invalid("HttpTarget.url must start with 'http://' or 'https://'.")
    _check_url(http.url, "HttpRequest.url")
    _check_host(http.url)
    _check_method("HttpRequest.http_method", http.http_method)
    _check_body(http, _HTTP_BODY_METHODS, "POST, PUT, or PATCH")
    _check_token(http)
    task.http_request.CopyFrom(http)
    task.http_request.http_method = http.http_method or HttpMethod.POST
    _store_headers(task.http_request.headers, http.headers)
    _drop_header(task.http_request.headers, "user-agent")
    task.http_request.headers["User-Agent"] = HTTP_USER_AGENT
    _set_deadline(request, task, HTTP_DEADLINES)


def _complete_app_engine(request: Any, task: Any, project: str) -> None:
    http = request.app_engine_http_request
    uri = http.relative_uri or "/"
    if not uri.startswith("/"):
        raise errors.invalid("AppEngineHttpRequest.relative_uri must start with '/'.")
    _check_url(uri, "AppEngineHttpRequest.relative_uri")
    _check_method("AppEngineHttpRequest.http_method", http.http_method)
    _check_body(http, _APP_ENGINE_BODY_METHODS, "POST or PUT")
    stored = task.app_engine_http_request
    stored.CopyFrom(http)
    stored.relative_uri = uri
    stored.http_method = http.http_method or HttpMethod.POST
    stored.app_engine_routing.host = app_engine_host(http.app_engine_routing, project)
    _store_headers(stored.headers, http.headers)
    _add_app_engine_headers(stored)
    _set_deadline(request, task, APP_ENGINE_DEADLINES)


def app_engine_host(routing: Any, project: str) -> str:
    """Return the host that routing names: [instance.][version.][service.]domain."""
    parts = (routing.instance, routing.version, routing.service, project + _APP_ENGINE_DOMAIN)
    return ".".join(part for part in parts if part)


def _add_app_engine_headers(stored: Any) -> None:
    """Add the headers that the service stores with an App Engine task."""
    agent = _drop_header(stored.headers, "user-agent")
    stored.headers["User-Agent"] = f"{agent} {APP_ENGINE_USER_AGENT}".strip()
    if not stored.body:
        return
    stored.headers["Content-Length"] = str(len(stored.body))
    if not any(name.lower() == "content-type" for name in stored.headers):
        stored.headers["Content-Type"] = "application/octet-stream"


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # A token of RFC 9110.


def _store_headers(stored: Any, requested: Any) -> None:
    """Replace stored by the requested headers without those only the service may set."""
    if sum(len(name) + len(value) for name, value in requested.items()) > MAX_HEADERS_BYTES:
        raise errors.invalid("The size of the headers must be less than 80KB.")
    stored.clear()
    for name, value in requested.items():
        # A space around a name, or a colon in it, would pass by what is reserved.
        if not _HEADER_NAME.fullmatch(name) or any(ord(letter) < 0x20 for letter in value):
            raise errors.invalid(f"Header '{name}' holds a character that HTTP does not allow.")
        if not is_reserved(name):
            stored[name] = value


def is_reserved(header: str) -> bool:
    """Return whether only the service may set a header; a caller's is passed over."""
    low = header.lower()
    return low in _RESERVED_HEADERS or low.startswith(_RESERVED_PREFIXES)


def _drop_header(headers: Any, low_name: str) -> str:
    """Remove a header in any case, and return its value."""
    value = ""
    for name in [name for name in headers if name.lower() == low_name]:
        value = headers.pop(name)
    return value


def check_size(
    request: Any, task: Any, schedule_at: float, pull: PullMessage | None = None
) -> None:
    """Refuse a task whose stored form is too large, as the service counts it.

    All that is stored counts, the service's additions included. In an App Engine task's routing
    only the host counts, in the form with a region, and its deadline only if the caller set one.

    Args:
        task: The complete message, with name and creation time.
        pull: The content of a task in a pull queue, in place of a request.

    Raises:
        Refused: INVALID_ARGUMENT.
    """
    pull_bytes = len(pull.payload) + len(pull.tag.encode()) if pull else 0
    if task.ByteSize() + pull_bytes < MAX_STORED_TASK_BYTES // 2:
        return
    stored = Task()
    stored.CopyFrom(task)
    set_seconds(stored.schedule_time, schedule_at)
    if stored.HasField("app_engine_http_request"):
        routing = stored.app_engine_http_request.app_engine_routing
        host = routing.host.replace(_APP_ENGINE_DOMAIN, f".uc.r{_APP_ENGINE_DOMAIN}")
        routing.Clear()
        routing.host = host
        if not request.HasField("dispatch_deadline"):
            stored.ClearField("dispatch_deadline")
    if stored.ByteSize() + pull_bytes > MAX_STORED_TASK_BYTES:
        raise errors.task_too_large()


def _check_url(url: str, field: str) -> None:
    if len(percent_encoded(url)) > MAX_URL_CHARACTERS:
        raise errors.invalid(f"{field} must not be longer than {MAX_URL_CHARACTERS} characters.")
    if _SPACE.search(url):
        raise errors.invalid(f"{field} must not contain spaces.")


def percent_encoded(url: str) -> str:
    """Return an address as it goes out: only characters outside ASCII are encoded."""
    if url.isascii() and url.isprintable():
        return url
    return quote(url, safe=string.printable)


def _check_host(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_right = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        raise errors.invalid("HttpRequest.url has no host or port that a request could go to.")


def _check_method(field: str, number: int) -> None:
    """Refuse a number that is none of the enum's: nothing could be sent by it."""
    if number not in _METHODS:
        raise errors.invalid(f"{field} must be one of HttpMethod, got {number}.")


def _check_body(http: Any, methods: set[int], names: str) -> None:
    method = http.http_method or HttpMethod.POST
    if http.body and method not in methods:
        raise errors.invalid(f"HTTP body is only allowed with HTTP methods {names}.")


def _check_token(http: Any) -> None:
    """Refuse a token without a service account; only the service knows the accounts."""
    kind = http.WhichOneof("authorization_header")
    if kind and not getattr(http, kind).service_account_email:
        raise errors.invalid(f"HttpRequest.{kind} needs a service_account_email.")


def _set_deadline(request: Any, task: Any, bounds: tuple[float, float, str]) -> None:
    """Store the dispatch deadline, 10 minutes when the caller set none."""
    deadline_s = seconds_of(request.dispatch_deadline)
    min_s, max_s, interval = bounds
    if deadline_s and not min_s <= deadline_s <= max_s:
        raise errors.invalid(f"Task.dispatchDeadline must be between {interval}.")
    set_seconds(task.dispatch_deadline, deadline_s or DEFAULT_DEADLINE_S)


def schedule_of(request: Any, now_s: float) -> float:
    """Return when a new task is due: never before now.

    Raises:
        Refused: INVALID_ARGUMENT: more than 30 days ahead.
    """
    if not request.HasField("schedule_time"):
        return now_s
    schedule_at = seconds_of(request.schedule_time)
    if schedule_at > now_s + MAX_SCHEDULE_AHEAD_S:
        raise errors.schedule_too_late(schedule_at, MAX_SCHEDULE_AHEAD_S)
    return max(now_s, schedule_at)
