"""Page tokens: a place in a list, signed, so that a caller cannot make one up.

The signature covers the list, its filters, its order, the direction and the place. A token of
another list, filter, reader or order is refused like any other that is not ours (S14).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rollforward.paging.ranges import Edge
from rollforward.runtime import Clock, SystemClock

VERSION: Final = 2
MIN_KEY_CHARS: Final = 32
# Datastore indexes values of at most 1,500 bytes, and takes no longer names; the rest is room for
# what a range puts in front.
MAX_POSITION_BYTES: Final = 1600
_MAC_BYTES: Final = 16
# The version, both flags of a place, and when it was signed, in seconds since 1970; 0: not said.
_HEAD: Final = struct.Struct(">B??Q")
# In base64. Behind the address of a page it has to fit the first line of a request: 4,094 bytes.
MAX_TOKEN_CHARS: Final = -(-(_MAC_BYTES + _HEAD.size + MAX_POSITION_BYTES) * 4 // 3)


class BadPageTokenError(ValueError):
    """This is no page token of this list: it was changed, is another list's, or has expired."""


@dataclass(frozen=True)
class PageStart:
    """The start of a page, and the direction of reading."""

    edge: Edge
    is_previous: bool


class PageTokens:
    """Signs page tokens, and reads those it has signed."""

    def __init__(
        self, keys: Sequence[str], *, max_age_s: float | None = None, clock: Clock | None = None
    ) -> None:
        """Take the keys.

        Args:
            keys: Random texts of at least 32 characters. The first one signs; tokens of all are
                read, so that a key can be replaced while its tokens are in use.
            max_age_s: Refuse older tokens; None: a token holds as long as its key, so that the
                address of a page can be kept.
        """
        if not keys or any(len(key) < MIN_KEY_CHARS for key in keys):
            raise ValueError(f"keys of page tokens must be at least {MIN_KEY_CHARS} characters")
        self._keys = [hashlib.sha256(b"page-tokens|" + key.encode()).digest() for key in keys]
        self._max_age_s = max_age_s
        self._clock = clock or SystemClock()

    def sign(self, name: str, scope: Mapping[str, str], place: PageStart) -> str:
        """Return the token of a place in a list.

        Raises:
            ValueError: the place is too long to be read again.
        """
        position = place.edge.position.encode()
        if len(position) > MAX_POSITION_BYTES:
            raise ValueError(
                f"a position must have at most {MAX_POSITION_BYTES} bytes, got {len(position)}"
            )
        signed_at = int(self._clock.now().timestamp()) if self._max_age_s is not None else 0
        head = _HEAD.pack(VERSION, place.edge.inclusive, place.is_previous, signed_at)
        content = head + position
        mac = _mac(self._keys[0], name, scope, content)
        return base64.urlsafe_b64encode(mac + content).rstrip(b"=").decode()

    def read(self, name: str, scope: Mapping[str, str], token: str) -> PageStart:
        """Return the place in a token of a list.

        Raises:
            BadPageTokenError: it is none of this list in this scope.
        """
        content = self._verify(name, scope, token)
        if content[0] != VERSION:
            raise BadPageTokenError("this page token belongs to another version of the app")
        _, inclusive, is_previous, signed_at = _HEAD.unpack_from(content)
        if self._max_age_s is not None:
            age_s = self._clock.now().timestamp() - signed_at
            if age_s >= self._max_age_s:
                raise BadPageTokenError("this page token has expired")
        return PageStart(Edge(content[_HEAD.size :].decode(), inclusive), is_previous)

    def _verify(self, name: str, scope: Mapping[str, str], token: str) -> bytes:
        if len(token) > MAX_TOKEN_CHARS or not token.isascii():
            raise BadPageTokenError("this is no page token")
        try:
            signed = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
        except binascii.Error:
            raise BadPageTokenError("this is no page token") from None
        mac, content = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        # base64 can write the same bytes in several ways, of which one is ours.
        is_ours = base64.urlsafe_b64encode(signed).rstrip(b"=").decode() == token and any(
            hmac.compare_digest(mac, _mac(key, name, scope, content)) for key in self._keys
        )
        if not is_ours:
            raise BadPageTokenError("this page token is not one of this list")
        return content


def _mac(key: bytes, name: str, scope: Mapping[str, str], content: bytes) -> bytes:
    owner = _json([name, sorted(scope.items())])
    text = len(owner).to_bytes(4) + owner + content
    return hmac.new(key, text, hashlib.sha256).digest()[:_MAC_BYTES]


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
