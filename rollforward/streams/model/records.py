"""Records and timers as hooks get them, and checks of their fields.

Times are whole milliseconds since 1970, in UTC, as in Kafka and Flink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rollforward.runtime.texts import plain_text
from rollforward.streams.model.codecs import MARK, Codecs, Encoded, ValueCodec, coded_text
from rollforward.streams.model.errors import BadRecordError, TooEarlyError
from rollforward.streams.model.json_text import check_depth, encoder

# Later than any record: the watermark of a stream that has ended.
FOREVER = 10**15
# No watermark reaches it.
NEVER = FOREVER + 1
MAX_KEY_BYTES = 500
MAX_TAG_CHARS = 200
# A chunk has at most 256 KB.
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
    """An event-time timer fires when the watermark reaches `at_ms`.

    A processing-time timer fires when the clock does.
    """

    key: str
    tag: str
    at_ms: int
    is_processing_time: bool = False


def check_key(key: Any) -> str:
    """Return a key, checked.

    Raises:
        BadRecordError: this is not a key.
    """
    if not isinstance(key, str) or not key:
        raise BadRecordError(f"a key must be a non-empty text, got {key!r:.100}")
    if encoded_bytes("a key", key) > MAX_KEY_BYTES:
        raise BadRecordError(f"a key must have at most {MAX_KEY_BYTES} bytes, got {key!r:.100}")
    return plain_text(key)


def encoded_bytes(subject: str, text: str) -> int:
    """Return how many bytes a text has.

    Raises:
        BadRecordError: it contains an unpaired surrogate, which JSON allows and UTF-8 does not.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise BadRecordError(f"{subject} must be whole characters, got {text!r:.100}") from error


def check_time(at: Any) -> int:
    """Return a time, checked.

    Raises:
        BadRecordError: this is not a time.
    """
    if type(at) is not int or not 0 <= at < FOREVER:
        raise BadRecordError(f"a time must be whole milliseconds since 1970, got {at!r:.100}")
    return at


def check_watermark(at: Any) -> int:
    """Return a watermark of a source, checked: a time, or FOREVER.

    Raises:
        BadRecordError: it is neither, such as microseconds, which would end the stream.
    """
    if type(at) is not int or not 0 <= at <= FOREVER:
        raise BadRecordError(
            f"a watermark must be whole milliseconds since 1970, or FOREVER, got {at!r:.100}"
        )
    return at


def check_tag(tag: Any) -> str:
    """Return the tag of a timer, checked.

    Raises:
        BadRecordError: this is not a tag.
    """
    if not isinstance(tag, str) or not 0 < len(tag) <= MAX_TAG_CHARS:
        raise BadRecordError(f"a tag must have 1 to {MAX_TAG_CHARS} characters, got {tag!r:.60}")
    return tag


def check_output(at: Any, input_at: int) -> int:
    """Return the time of an output, checked.

    Raises:
        BadRecordError: this is not a time.
        TooEarlyError: it is before the input's.
    """
    if type(at) is int and input_at <= at < FOREVER:
        return at
    raise TooEarlyError(
        f"the time of an output must not be before its input's, {input_at}, got {check_time(at)}"
    )


def value_text(value: Any, codec: ValueCodec | None = None) -> str:
    """Return a value as text: as JSON, or with the bytes of a codec in base64.

    Raises:
        BadRecordError: it is not a JSON value, or its codec cannot encode it, or it is too large,
            or nested too deeply.
    """
    if codec is not None:
        return checked_size(coded_text(codec, value))
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecordError(f"a value must be JSON: {error}") from error
    return checked_size(text)


def inbound_value(codecs: Codecs, stream: str, value: Any) -> tuple[str, Any]:
    """Return a value that enters a stream as text, and as hooks get it.

    Args:
        value: An `Encoded` has the bytes of a codec of the stream.

    Raises:
        BadRecordError: it is invalid, or the stream has no such codec.
    """
    if not isinstance(value, Encoded):
        return value_text(value, codecs.writers.get(stream)), value
    text = checked_size(codecs.text_of(stream, value))
    return text, codecs.value(text)


def checked_size(text: str) -> str:
    """Return the text of a value, after checking its size as it is stored, and its depth.

    Raises:
        BadRecordError: it is too large, or nested too deeply.
    """
    if len(text) > MAX_VALUE_BYTES:
        raise BadRecordError(f"a value must have at most {MAX_VALUE_BYTES} bytes, got {len(text)}")
    if not text.startswith(MARK):
        check_depth(text)
    return text
