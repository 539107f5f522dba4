"""Codecs of values: the records of a stream as bytes (Avro, protobuf, msgpack) instead of JSON.

    class HitsCodec:
        name = "hits-1"

        def encode(self, value: Hits) -> bytes:
            return struct.pack("<qi", value.start_ms, value.count)

        def decode(self, data: bytes) -> Hits:
            return Hits(*struct.unpack("<qi", data))

    Pipeline("weblog", HitsPerPath, codecs={"hits": HitsCodec()})

A value is stored as text: JSON, or a mark, the name of its codec, and its bytes in base64. So each
value names the codec that reads it. Code without that codec leaves the value to other instances,
and a value that its codec cannot decode becomes a dead letter.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rollforward.app_code import SIGNALS
from rollforward.runtime.texts import describe_error, storable
from rollforward.streams.model.errors import BadRecordError, MissingCodeError
from rollforward.streams.model.json_text import decoded, encoder

# The first character of a value that is not JSON. JSON escapes it.
MARK = "\1"
MAX_ERROR_CHARS = 500
MAX_PREVIEW_BYTES = 256
MAX_NAME_CHARS = 61
_NAME = re.compile(rf"[a-z][a-z0-9.-]{{0,{MAX_NAME_CHARS - 1}}}")
_encode = encoder(allow_nan=False)


class ValueCodec(Protocol):
    """Serializer of values to bytes and back.

    `name` is stored with each value: 1 to 61 of a-z, 0-9, "." and "-". A codec that reads other
    bytes needs another name. `decode` must return a value equal to the encoded one, because key
    functions get either; an exception of it makes the record a dead letter.
    """

    @property
    def name(self) -> str: ...

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class JsonValues:
    """Values as JSON, which all code reads; as the first codec of a stream it writes JSON."""

    name = "json"

    def encode(self, value: Any) -> bytes:
        return _encode(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


JSON_VALUES = JsonValues()


@dataclass(frozen=True)
class Encoded:
    """A value as bytes: to push it as it is, and as dead letters have it.

    Attributes:
        codec: The name of its codec; empty: the first one of its stream.
    """

    data: bytes
    codec: str = ""

    def __str__(self) -> str:
        """Return its codec, its size, and its first 256 bytes in hexadecimal."""
        more = "..." if len(self.data) > MAX_PREVIEW_BYTES else ""
        return (
            f"{self.codec}, {len(self.data)} bytes: {self.data[:MAX_PREVIEW_BYTES].hex(' ')}{more}"
        )


@dataclass(frozen=True)
class Undecodable:
    """The place of a value that its codec could not decode, and the error."""

    error: str


class Codecs:
    """The codecs of a pipeline.

    Attributes:
        by_stream: The declared codecs of each stream: the first one writes, all of them read.
        writers: By stream the codec that writes; a stream without one has JSON.
    """

    def __init__(self, by_stream: Mapping[str, ValueCodec | Sequence[ValueCodec]]) -> None:
        """Check codecs.

        Raises:
            TypeError: a name is invalid, or two codecs have the same.
        """
        self.by_stream: Mapping[str, Sequence[ValueCodec]] = {
            stream: tuple(codecs) if isinstance(codecs, Sequence) else (codecs,)
            for stream, codecs in by_stream.items()
        }
        self._readers: dict[str, ValueCodec] = {}
        for stream, codecs in self.by_stream.items():
            if not codecs:
                raise TypeError(f"{stream}: `codecs` must have at least one codec")
            for codec in codecs:
                self._add(stream, codec)
        self.writers: Mapping[str, ValueCodec] = {
            stream: codecs[0]
            for stream, codecs in self.by_stream.items()
            if codecs[0] is not JSON_VALUES
        }

    def _add(self, stream: str, codec: ValueCodec) -> None:
        name = getattr(codec, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise TypeError(f"{stream}: a codec's name must consist of a-z, 0-9, . and -: {name!r}")
        if self._readers.setdefault(name, codec) is not codec or (
            name == JSON_VALUES.name and codec is not JSON_VALUES
        ):
            raise TypeError(f"{stream}: two codecs must not have one name, {name!r}")

    @property
    def names(self) -> list[str]:
        """Return the names of all codecs besides JSON, in order."""
        return sorted({*self._readers} - {JSON_VALUES.name})

    def value(self, text: str) -> Any:
        """Return the value of a stored text.

        Raises:
            BadRecordError: its codec cannot decode it.
            MissingCodeError: this code does not have its codec.
        """
        value = self.read(text)
        if isinstance(value, Undecodable):
            raise BadRecordError(value.error)
        return value

    def read(self, text: str) -> Any:
        """Return the value of a stored text, or why its codec cannot decode it.

        Raises:
            MissingCodeError: this code does not have its codec.
        """
        if not text.startswith(MARK):
            return decoded(text)
        name, data = split_text(text)
        codec = self._readers.get(name)
        if codec is None:
            raise MissingCodeError(
                f"a value was encoded by {name}: only instances of the app that have a codec of "
                "this name can read it"
            )
        try:
            return codec.decode(binascii.a2b_base64(data, strict_mode=True))
        except (MemoryError, *SIGNALS):
            raise
        except BaseException as error:
            reason = f"{name} cannot decode the value: {describe_error(error)}"
            return Undecodable(storable(reason, MAX_ERROR_CHARS))

    def read_all(self, texts: Iterable[str]) -> list[Any]:
        """Return the values of texts, each as `read` returns it."""
        return list(map(self.read, texts))

    def named(self, stream: str, encoded: Encoded) -> Encoded:
        """Return a value with the name of its codec, if the stream has one."""
        codecs = self.by_stream.get(stream, ())
        return replace(encoded, codec=codecs[0].name) if codecs and not encoded.codec else encoded

    def text_of(self, stream: str, encoded: Encoded) -> str:
        """Return the text of a value that a caller has encoded.

        Raises:
            BadRecordError: the stream has no codec of this name.
        """
        names = [codec.name for codec in self.by_stream.get(stream, ())]
        name = self.named(stream, encoded).codec
        if name not in names:
            raise BadRecordError(f"{stream} must have a codec {name!r}, it has {names}")
        if name != JSON_VALUES.name:
            return join_text(name, _base64(encoded.data))
        try:
            return _encode(JSON_VALUES.decode(encoded.data))
        except (ValueError, RecursionError) as error:
            raise BadRecordError(f"a value must be JSON: {error}") from error


NO_CODECS = Codecs({})


def coded_text(codec: ValueCodec, value: Any) -> str:
    """Return a value as text, with the bytes of a codec.

    Raises:
        BadRecordError: it cannot be encoded.
    """
    try:
        data = codec.encode(value)
    except (MemoryError, *SIGNALS):
        raise
    except BaseException as error:
        raise BadRecordError(
            f"a value must be encoded by {codec.name}: {describe_error(error)}"
        ) from error
    if not isinstance(data, bytes):
        raise BadRecordError(f"{codec.name} must return bytes, got a {type(data).__name__}")
    return join_text(codec.name, _base64(data))


def encoded_of(text: str) -> Encoded | None:
    """Return the bytes of a stored value and the name of its codec; None: it is JSON."""
    if not text.startswith(MARK):
        return None
    name, data = split_text(text)
    return Encoded(binascii.a2b_base64(data), name)


def text_of(encoded: Encoded) -> str:
    """Return the text of a value, of which `encoded_of` returns the bytes."""
    return join_text(encoded.codec, _base64(encoded.data))


def split_text(text: str) -> tuple[str, str]:
    """Return the name of a value's codec and its bytes in base64; of JSON no name, and itself.

    >>> split_text(join_text("hits-1", "AAEC"))
    ('hits-1', 'AAEC')
    """
    if not text.startswith(MARK):
        return "", text
    name, _, data = text[1:].partition(":")
    return name, data


def join_text(name: str, data: str) -> str:
    """Return what `split_text` takes apart."""
    return f"{MARK}{name}:{data}" if name else data


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()
