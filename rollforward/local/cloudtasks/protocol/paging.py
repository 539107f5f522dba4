"""Page tokens: opaque, signed, bound to their list, good for two hours."""

import base64
import binascii
import hashlib
import hmac
import json

from rollforward.local.cloudtasks.clock import Clock
from rollforward.local.cloudtasks.protocol import errors

LIFETIME_S = 2 * 3600
# A response that would be larger has fewer tasks: documented of leases at the service, and allowed
# of its pages.
MAX_RESPONSE_BYTES = 32 * 1024 * 1024
_MAC_BYTES = 16


def sign(secret: bytes, listing: str, position: str, now_s: float) -> str:
    """Return a token that continues one listing after position."""
    payload = json.dumps([listing, position, now_s + LIFETIME_S]).encode()
    return base64.urlsafe_b64encode(_mac(secret, payload) + payload).decode()


def position_of(secret: bytes, listing: str, token: str, now_s: float) -> str:
    """Return the position inside a token of the same listing.

    Raises:
        Refused: INVALID_ARGUMENT: not ours, of another listing, or too old.
    """
    try:
        raw = base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise errors.invalid("Invalid page token.") from None
    mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(secret, payload)):
        raise errors.invalid("Invalid page token.")
    token_listing, position, expires_at = json.loads(payload)
    if token_listing != listing:
        raise errors.invalid("Invalid page token: it belongs to another list or filter.")
    if now_s > expires_at:
        raise errors.invalid("Invalid page token: it has expired.")
    return str(position)


class PageTokens:
    """The page tokens of one store.

    Args:
        secret: Signs them; kept with the store.
    """

    def __init__(self, secret: bytes, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock

    def start(self, listing: str, size: int, token: str, max_size: int) -> tuple[str, int]:
        """Return after which position a page begins, "" for the first, and how long it may be.

        Raises:
            Refused: INVALID_ARGUMENT: the size is negative, or the token not one for this list.
        """
        if size < 0:
            raise errors.invalid("page_size must not be negative.")
        now_s = self._clock.now()
        position = position_of(self._secret, listing, token, now_s) if token else ""
        return position, min(size or max_size, max_size)

    def next(self, listing: str, position: str) -> str:
        """Return the token of the page after this position."""
        return sign(self._secret, listing, position, self._clock.now())


def _mac(secret: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, payload, hashlib.sha256)[:_MAC_BYTES]
