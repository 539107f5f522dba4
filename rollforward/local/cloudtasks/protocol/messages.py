"""The raw protobuf classes of the v2 API.

The client library wraps each message in a proto-plus class, which costs about
ten times as much per field. The server side works on the messages underneath.
"""

from typing import Any

# Not `from google.cloud.tasks_v2 import types`: the command `tasks-emulator` loads no client.
import google.cloud.tasks_v2.types as types

Task: Any = types.Task.pb()
Queue: Any = types.Queue.pb()
RetryConfig: Any = types.RetryConfig.pb()
HttpMethod: Any = types.HttpMethod
UriOverride: Any = types.UriOverride
CmekConfig: Any = types.CmekConfig.pb()

MAX_RATE_PER_S = 500

BASIC: int = types.Task.View.BASIC.value
FULL: int = types.Task.View.FULL.value

RUNNING: int = types.Queue.State.RUNNING.value
PAUSED: int = types.Queue.State.PAUSED.value
DISABLED: int = types.Queue.State.DISABLED.value


def request(name: str) -> Any:
    """Return the raw class of a request, response or metadata message."""
    return getattr(types, name).pb()


def seconds_of(duration: Any) -> float:
    """Return a Duration or Timestamp message in seconds."""
    return duration.seconds + duration.nanos / 1e9


def micros_of(seconds: float) -> int:
    """Return seconds in whole microseconds, as messages carry them."""
    return int(seconds * 1e6 + 0.5)


def set_seconds(message: Any, seconds: float) -> None:
    """Write seconds into a Duration or Timestamp, cut to whole microseconds."""
    message.seconds, micros_left = divmod(micros_of(seconds), 1_000_000)
    message.nanos = micros_left * 1000
