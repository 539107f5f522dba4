"""The consequences of an attempt's end: its status, the next attempt's headers, throttling."""

import email.utils
from collections.abc import Mapping

from google.rpc import code_pb2

DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"

_CODE_OF_HTTP = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MAX_RETRY_AFTER_S = 3600.0


def code_number(name: str) -> int:
    """Return the number of a google.rpc.Code."""
    return int(code_pb2.Code.Value(name))


def attempt_status(http_status: int | None, error: str | None) -> tuple[int, str]:
    """Return code and message of Attempt.response_status."""
    if http_status is None:
        name = DEADLINE_EXCEEDED if error == DEADLINE_EXCEEDED else "UNAVAILABLE"
        return code_number(name), error or name
    if 200 <= http_status <= 299:
        return 0, ""
    name = _CODE_OF_HTTP.get(http_status, "UNKNOWN")
    number = code_number(name)
    return number, f"{name}({number}): HTTP status code {http_status}"


def throttles(is_app_engine: bool, http_status: int | None) -> bool:
    """Return whether an answer slows the whole queue down.

    503 does for an App Engine target; 429, any 5xx and a connection that broke for an HTTP target.

    Source: docs.cloud.google.com/tasks/docs/common-pitfalls ("backoff errors and enforced rates").
    """
    if is_app_engine:
        return http_status == 503
    return http_status is None or http_status == 429 or 500 <= http_status <= 599


def supports_retry_after(is_app_engine: bool, http_status: int | None) -> bool:
    """Return whether the Retry-After header of an answer counts."""
    return http_status == 503 or (http_status == 429 and not is_app_engine)


def counts_as_execution(is_app_engine: bool, http_status: int) -> bool:
    """Return whether an answer raises the ExecutionCount header: no 5xx of an HTTP target does."""
    return is_app_engine or not 500 <= http_status <= 599


def previous_response(is_app_engine: bool, http_status: int | None, error: str | None) -> int:
    """Return the PreviousResponse header of the next attempt, also when no response came.

    Recorded: 504 for an HTTP target that outran its deadline, 0 for an App Engine target. A
    connection that broke is 503, as from Cloud Run's front end for a dead instance.
    """
    if http_status is not None:
        return http_status
    if is_app_engine:
        return 0
    return 504 if error == DEADLINE_EXCEEDED else 503


def retry_reason(is_app_engine: bool, http_status: int | None) -> str:
    """Return the RetryReason header of the next attempt (recorded)."""
    if not is_app_engine:
        return ""
    return "App Error" if http_status is not None else "Instance Unavailable"


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float:
    """Return the seconds a Retry-After header asks for, 0 to an hour.

    >>> retry_after_s({"retry-after": "7"}, now_s=0)
    7.0
    """
    value = next((v for k, v in headers.items() if k.lower() == "retry-after"), "").strip()
    if value.isdecimal():
        return min(float(value), _MAX_RETRY_AFTER_S)
    try:
        at = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):  # No date, or one of a year that nobody will see.
        return 0.0
    return min(max(0.0, at - now_s), _MAX_RETRY_AFTER_S)
