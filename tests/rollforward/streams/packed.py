"""Codecs for tests: values as bytes that are neither JSON nor text."""

from __future__ import annotations

import json
from typing import Any


class Packed:
    """JSON of which each byte is turned round; some values cannot be decoded.

    Attributes:
        garbled: Values with this field raise.
    """

    def __init__(self, name: str = "packed-1", garbled: str = "garbled") -> None:
        self.name, self.garbled = name, garbled

    def encode(self, value: Any) -> bytes:
        return bytes(255 - byte for byte in json.dumps(value).encode())

    def decode(self, data: bytes) -> Any:
        value = json.loads(bytes(255 - byte for byte in data))
        if isinstance(value, dict) and self.garbled in value:
            raise ValueError("garbled")
        return value


PACKED = Packed()
