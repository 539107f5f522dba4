"""Items of pull queues, their leases and dead letters."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, NewType

from rollforward.runtime.errors import BadItemError
from rollforward.runtime.idempotency import check_idempotency_key
from rollforward.runtime.texts import has_unpaired_surrogate

MAX_PAYLOAD_BYTES = 100_000
MAX_TAG_CHARS = 200
MAX_DELAY_S = 10 * 366 * 24 * 3600  # As of a task.

ItemId = NewType("ItemId", str)


@dataclass(frozen=True)
class Lease:
    """One item, leased to one worker until `expires_at` (UTC, naive).

    `deliveries` counts how often it was leased, this time included. `version` is the fence: it
    is another one as soon as another worker leases the item.
    """

    id: ItemId
    payload: str
    tag: str | None
    deliveries: int
    expires_at: datetime.datetime
    version: int


@dataclass(frozen=True)
class DeadLetter:
    """An item that was delivered as often as its queue allows, and never acked."""

    id: ItemId
    payload: str
    tag: str | None
    deliveries: int


class Oldest:
    """The tag of the oldest item that can be leased; items without one are a group, too."""

    def __repr__(self) -> str:
        return "OLDEST"


OLDEST = Oldest()


def check(payload: Any, tag: Any, idempotency_key: str | None) -> None:
    """Check a new item.

    Raises:
        BadItemError: it cannot be added.
    """
    if not isinstance(payload, str):
        raise BadItemError(f"payload must be a str, such as JSON, got {type(payload).__name__}")
    if tag is not None and not isinstance(tag, str):
        raise BadItemError(f"tag must be a text, got {tag!r:.100}")
    if has_unpaired_surrogate(payload) or has_unpaired_surrogate(tag or ""):
        raise BadItemError("payload and tag must not contain an unpaired surrogate")
    if len(payload.encode()) > MAX_PAYLOAD_BYTES:
        raise BadItemError(f"payload must have at most {MAX_PAYLOAD_BYTES} bytes")
    if tag is not None and not 1 <= len(tag) <= MAX_TAG_CHARS:
        raise BadItemError(f"tag must have 1 to {MAX_TAG_CHARS} characters, got {tag!r:.100}")
    check_idempotency_key(idempotency_key)


def check_delay(delay_s: float) -> None:
    """Check after how many seconds an item is to be leased; less than none is now.

    Raises:
        BadItemError: it never could.
    """
    if not -MAX_DELAY_S <= delay_s <= MAX_DELAY_S:
        raise BadItemError(f"delay_s must be at most ten years, got {delay_s:g}")
