"""Records and timers, as computations get them.

Times are whole milliseconds since 1970, in UTC, as in Kafka and Flink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rollforward.streams.model.errors import BadRecordError, TooEarlyError
from rollforward.streams.model.json_text import check_depth, encoder

# Later than any record: the watermark of a stream that has ended.
FOREVER = 10**15
# The time of what does not wait for any: no watermark reaches it.
NEVER = FOREVER + 1
MAX_KEY_BYTES = 500
MAX_TAG_CHARS = 200
# Of a chunk's 256 KB.
MAX_VALUE_BYTES = 200_000
_encode = encoder(allow_nan=False)


class Record(NamedTuple):
    """One record of a stream, under the key that the computation gave it."""

    key: str
    value: Any
    timestamp_ms: int
    stream: str


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fires when the watermark has reached `at_ms`.

    A timer of processing time fires when the clock has.
    """

    key: str
    tag: str
    at_ms: int
    is_processing_time: bool = False


def check_key(key: Any) -> str:
    """Return a key.

    Raises:
        BadRecordError: it is none.
    """
    if not isinstance(key, str) or not key:
        raise BadRecordError(f"a key is a text that is not empty, not {key!r:.100}")
    if encoded_bytes("a key", key) > MAX_KEY_BYTES:
        raise BadRecordError(f"a key has at most {MAX_KEY_BYTES} bytes: {key!r:.100}")
    return key


def encoded_bytes(what: str, text: str) -> int:
    """Return how many bytes a text has.

    Raises:
        BadRecordError: it has half of a character, as JSON may have it, and has none.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise BadRecordError(f"{what} must be whole characters, got {text!r:.100}") from error


def check_time(at: Any) -> int:
    """Return a time.

    Raises:
        BadRecordError: it is none.
    """
    if type(at) is not int or not 0 <= at < FOREVER:
        raise BadRecordError(f"a time is in whole milliseconds since 1970, not {at!r:.100}")
    return at


def check_tag(tag: Any) -> str:
    """Return the tag of a timer.

    Raises:
        BadRecordError: it is none.
    """
    if not isinstance(tag, str) or not 0 < len(tag) <= MAX_TAG_CHARS:
        raise BadRecordError(f"a tag is a text of 1 to {MAX_TAG_CHARS} characters: {tag!r:.60}")
    return tag


def check_output(at: Any, input_at: int) -> int:
    """Return the time of an output.

    Raises:
        BadRecordError: it is no time.
        TooEarlyError: it lies before that of its input.
    """
    if type(at) is int and input_at <= at < FOREVER:
        return at
    raise TooEarlyError(
        f"an output at {check_time(at)} is earlier than its input, at {input_at}: give it that "
        "time, or a later one"
    )


def value_text(value: Any) -> str:
    """Return a value as JSON.

    Raises:
        BadRecordError: it is not JSON, or too large, or too deep.
    """
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecordError(f"a value is JSON: {error}") from error
    if len(text) > MAX_VALUE_BYTES:
        raise BadRecordError(f"a value has at most {MAX_VALUE_BYTES} bytes, not {len(text)}")
    check_depth(text)
    return text
