"""What a queue or a task must look like, and what the service adds to it.

Sources: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
and cloud.google.com/tasks/docs/quotas
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from devserver.cloudtasks import refusals
from devserver.cloudtasks.messages import RUNNING, HttpMethod, Queue, seconds_of, set_seconds

MAX_SCHEDULE_AHEAD_S = 30 * 86400
MAX_HTTP_TASK_BYTES = 1024 * 1024
MAX_APP_ENGINE_TASK_BYTES = 100 * 1024
MAX_HEADERS_BYTES = 80 * 1024
MAX_URL_CHARACTERS = 2083
MAX_DISPATCHES_PER_S = 500
MAX_CONCURRENT_DISPATCHES = 5000

HTTP_DEADLINES_S = (15.0, 30 * 60.0)
APP_ENGINE_DEADLINES_S = (15.0, 24 * 3600 + 15.0)
DEFAULT_DEADLINE_S = 600.0

HTTP_USER_AGENT = "Google-Cloud-Tasks"
APP_ENGINE_USER_AGENT = "AppEngine-Google; (+http://code.google.com/appengine)"

_HTTP_BODY_METHODS = {HttpMethod.POST, HttpMethod.PUT, HttpMethod.PATCH}
_APP_ENGINE_BODY_METHODS = {HttpMethod.POST, HttpMethod.PUT}
_RESERVED_HEADERS = {"host", "content-length"}
_RESERVED_PREFIXES = ("x-google-", "x-appengine-", "x-cloudtasks-")
_SETTABLE = ("app_engine_routing_override", "http_target", "stackdriver_logging_config")


# --- queues ---------------------------------------------------------------


def default_burst(rate_per_s: float) -> int:
    """Return the burst the service picks; it is known to be 100 at 500 a second."""
    return int(max(10, min(100, rate_per_s / 5)))


def complete_queue(given: Any) -> Any:
    """Return a new queue message: what the caller set, and defaults for the rest."""
    queue = Queue(name=given.name, state=RUNNING)
    for field in _SETTABLE:
        if given.HasField(field):
            getattr(queue, field).CopyFrom(getattr(given, field))
    queue.rate_limits.CopyFrom(given.rate_limits)
    queue.retry_config.CopyFrom(given.retry_config)
    _fill_rate_limits(queue.rate_limits)
    _fill_retry_config(queue.retry_config)
    return queue


def _fill_rate_limits(limits: Any) -> None:
    limits.max_dispatches_per_second = limits.max_dispatches_per_second or 500.0
    limits.max_concurrent_dispatches = limits.max_concurrent_dispatches or 1000
    limits.max_burst_size = default_burst(limits.max_dispatches_per_second)


def _fill_retry_config(config: Any) -> None:
    config.max_attempts = config.max_attempts or 100
    config.max_doublings = config.max_doublings or 16
    has_min, has_max = config.HasField("min_backoff"), config.HasField("max_backoff")
    min_s = seconds_of(config.min_backoff) if has_min else 0.1
    max_s = seconds_of(config.max_backoff) if has_max else 3600.0
    # A default never contradicts what the caller did set.
    set_seconds(config.min_backoff, min_s if has_min else min(min_s, max_s))
    set_seconds(config.max_backoff, max_s if has_max else max(min_s, max_s))
    set_seconds(config.max_retry_duration, seconds_of(config.max_retry_duration))


def updated_queue(current: Any, given: Any, paths: Iterable[str]) -> Any:
    """Return current with the fields named by paths taken from given.

    No paths means every field. A path may reach into a message, such as
    retry_config.max_attempts; output-only fields are passed over.

    Raises:
        Refused: INVALID_ARGUMENT: a path names no field of a queue.
    """
    queue = Queue()
    queue.CopyFrom(current)
    for path in list(paths) or [*_SETTABLE, "rate_limits", "retry_config"]:
        _copy_path(queue, given, path)
    complete = complete_queue(queue)
    _keep_explicit_zeros(complete, queue, paths)
    complete.state = current.state
    if current.HasField("purge_time"):
        complete.purge_time.CopyFrom(current.purge_time)
    return complete


def _copy_path(target: Any, source: Any, path: str) -> None:
    """Copy one field, which may be nested, or clear it when source lacks it."""
    *outer, last = path.split(".")
    for part in outer:
        _check_field(target, part, path)
        target, source = getattr(target, part), getattr(source, part)
    descriptor = _check_field(target, last, path)
    if descriptor.message_type is None:
        setattr(target, last, getattr(source, last))
        return
    target.ClearField(last)
    if source.HasField(last):
        getattr(target, last).CopyFrom(getattr(source, last))


def _check_field(message: Any, field: str, path: str) -> Any:
    descriptor = getattr(message, "DESCRIPTOR", None)
    if descriptor is None or field not in descriptor.fields_by_name:
        raise refusals.invalid(f"The update mask names no field of a queue: '{path}'.")
    return descriptor.fields_by_name[field]


def _keep_explicit_zeros(complete: Any, queue: Any, paths: Iterable[str]) -> None:
    """Let a mask that names max_doublings set it to zero, which else means 'default'."""
    if "retry_config.max_doublings" in paths:
        complete.retry_config.max_doublings = queue.retry_config.max_doublings


def check_queue(queue: Any) -> None:
    """Refuse settings outside the documented ranges.

    Raises:
        Refused: INVALID_ARGUMENT, naming the field and its range.
    """
    limits = queue.rate_limits
    _check_range(
        "rate_limits.max_dispatches_per_second",
        limits.max_dispatches_per_second,
        MAX_DISPATCHES_PER_S,
    )
    _check_range(
        "rate_limits.max_concurrent_dispatches",
        limits.max_concurrent_dispatches,
        MAX_CONCURRENT_DISPATCHES,
    )
    check_retry_config(queue.retry_config, "retry_config")
    if queue.HasField("http_target"):
        _check_http_target(queue.http_target)


def _check_range(field: str, value: float, maximum: float) -> None:
    if not 0 <= value <= maximum:
        raise refusals.invalid(f"Queue.{field} must be between 0 and {maximum}, not {value:g}.")


def check_retry_config(config: Any, field: str) -> None:
    """Refuse a retry configuration that contradicts itself.

    Raises:
        Refused: INVALID_ARGUMENT, naming the field.
    """
    if config.max_attempts < -1:
        raise refusals.invalid(f"{field}.max_attempts must be -1 (unlimited) or more.")
    if config.max_doublings < 0:
        raise refusals.invalid(f"{field}.max_doublings must not be negative.")
    for name in ("max_retry_duration", "min_backoff", "max_backoff"):
        if seconds_of(getattr(config, name)) < 0:
            raise refusals.invalid(f"{field}.{name} must not be negative.")
    both_set = config.HasField("min_backoff") and config.HasField("max_backoff")
    if both_set and seconds_of(config.min_backoff) > seconds_of(config.max_backoff):
        raise refusals.invalid(f"{field}.min_backoff must not be above {field}.max_backoff.")


def _check_http_target(target: Any) -> None:
    override = target.uri_override
    if override.HasField("host") and not override.host:
        raise refusals.invalid("Queue.http_target.uri_override.host must not be empty.")
    if override.HasField("port") and override.port < 0:
        raise refusals.invalid("Queue.http_target.uri_override.port must not be negative.")
    if target.HasField("oidc_token") and not (
        target.oidc_token.service_account_email and target.oidc_token.audience
    ):
        raise refusals.invalid(
            "Queue.http_target.oidc_token needs both service_account_email and audience."
        )
    if target.HasField("oauth_token") and not (
        target.oauth_token.service_account_email and target.oauth_token.scope
    ):
        raise refusals.invalid(
            "Queue.http_target.oauth_token needs both service_account_email and scope."
        )


# --- tasks ----------------------------------------------------------------


def complete_task(given: Any, task: Any, project: str) -> None:
    """Write into task what the service stores of given: request, deadline, retries.

    Raises:
        Refused: INVALID_ARGUMENT: a rule of the reference is broken.
    """
    kind = given.WhichOneof("message_type")
    if kind == "http_request":
        _complete_http(given, task)
    elif kind == "app_engine_http_request":
        _complete_app_engine(given, task, project)
    else:
        raise refusals.invalid("Task must have an http_request or an app_engine_http_request.")
    if given.HasField("retry_config"):
        check_retry_config(given.retry_config, "Task.retry_config")
        task.retry_config.CopyFrom(given.retry_config)


def _complete_http(given: Any, task: Any) -> None:
    _check_size(given, MAX_HTTP_TASK_BYTES)
    request = given.http_request
    if not request.url.startswith(("http://", "https://")):
        raise refusals.invalid("HttpRequest.url must start with 'http://' or 'https://'.")
    _check_url(request.url, "HttpRequest.url")
    _check_host(request.url)
    _check_body(request, _HTTP_BODY_METHODS, "POST, PUT, or PATCH")
    task.http_request.CopyFrom(request)
    task.http_request.http_method = request.http_method or HttpMethod.POST
    _store_headers(task.http_request.headers, request.headers)
    _drop_header(task.http_request.headers, "user-agent")
    task.http_request.headers["User-Agent"] = HTTP_USER_AGENT
    _set_deadline(given, task, HTTP_DEADLINES_S)


def _complete_app_engine(given: Any, task: Any, project: str) -> None:
    _check_size(given, MAX_APP_ENGINE_TASK_BYTES)
    request = given.app_engine_http_request
    uri = request.relative_uri or "/"
    if not uri.startswith("/"):
        raise refusals.invalid("AppEngineHttpRequest.relative_uri must start with '/'.")
    _check_url(uri, "AppEngineHttpRequest.relative_uri")
    _check_body(request, _APP_ENGINE_BODY_METHODS, "POST or PUT")
    stored = task.app_engine_http_request
    stored.CopyFrom(request)
    stored.relative_uri = uri
    stored.http_method = request.http_method or HttpMethod.POST
    stored.app_engine_routing.host = app_engine_host(request.app_engine_routing, project)
    _store_headers(stored.headers, request.headers)
    _add_app_engine_headers(stored)
    _set_deadline(given, task, APP_ENGINE_DEADLINES_S)


def app_engine_host(routing: Any, project: str) -> str:
    """Return the host that routing stands for: [instance.][version.][service.]domain."""
    parts = (routing.instance, routing.version, routing.service, f"{project}.appspot.com")
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


def _store_headers(stored: Any, given: Any) -> None:
    """Replace stored by the given headers without those only the service may set."""
    if sum(len(name) + len(value) for name, value in given.items()) > MAX_HEADERS_BYTES:
        raise refusals.invalid("The size of the headers must be less than 80KB.")
    stored.clear()
    for name, value in given.items():
        if any(ord(character) < 0x20 for character in name + value) or not name:
            raise refusals.invalid(f"Header '{name}' holds a character that HTTP does not allow.")
        low = name.lower()
        if low not in _RESERVED_HEADERS and not low.startswith(_RESERVED_PREFIXES):
            stored[name] = value


def _drop_header(headers: Any, low_name: str) -> str:
    """Remove a header in whatever case, and return what it was."""
    value = ""
    for name in [name for name in headers if name.lower() == low_name]:
        value = headers.pop(name)
    return value


def _check_size(task: Any, limit_bytes: int) -> None:
    size_bytes = task.ByteSize()
    if size_bytes > limit_bytes:
        raise refusals.invalid(f"Task size too large: {size_bytes} bytes, limit {limit_bytes}.")


def _check_url(url: str, field: str) -> None:
    if len(url) > MAX_URL_CHARACTERS:
        raise refusals.invalid(f"{field} must not be longer than {MAX_URL_CHARACTERS} characters.")
    if any(character.isspace() for character in url):
        raise refusals.invalid(f"{field} must not contain spaces.")


def _check_host(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_right = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        raise refusals.invalid("HttpRequest.url has no host or port that a request could go to.")


def _check_body(request: Any, methods: set[int], said: str) -> None:
    method = request.http_method or HttpMethod.POST
    if request.body and method not in methods:
        raise refusals.invalid(f"HTTP body is only allowed with HTTP methods {said}.")


def _set_deadline(given: Any, task: Any, range_s: tuple[float, float]) -> None:
    """Store the dispatch deadline, 10 minutes when the caller set none."""
    deadline_s = seconds_of(given.dispatch_deadline)
    if deadline_s and not range_s[0] <= deadline_s <= range_s[1]:
        raise refusals.invalid(
            f"Task.dispatchDeadline must be between [{range_s[0]:g}s, {range_s[1]:g}s]."
        )
    set_seconds(task.dispatch_deadline, deadline_s or DEFAULT_DEADLINE_S)


def schedule_of(given: Any, now: float) -> float:
    """Return when a new task is due: never before now.

    Raises:
        Refused: INVALID_ARGUMENT: more than 30 days ahead.
    """
    if not given.HasField("schedule_time"):
        return now
    schedule_at = seconds_of(given.schedule_time)
    if schedule_at > now + MAX_SCHEDULE_AHEAD_S:
        raise refusals.invalid("Task.scheduleTime must be at most 30 days (720h) in the future.")
    return max(now, schedule_at)
