"""What one call adds to counters: checked, and the same when it is repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rollforward.counters.entities import receipt_key
from rollforward.fork_join import BadItemError, DifferentItemError
from rollforward.fork_join.items import MAX_IDEMPOTENCY_KEY_CHARS, MAX_KEY_BYTES

# So a shard has room for nine million of the largest; the service itself stops at 2**63 silently.
MAX_DELTA = 10**12
MAX_KEYS = 100
# A task may be delivered for 31 days: until then an idempotency key has to be known.
RECEIPTS_FOR = timedelta(days=32)


@dataclass(frozen=True)
class Counted:
    """An increment that counts. `is_duplicate`: it was counted before, under its idempotency key.

    `conflicts` are the commits that lost a race, or waited for one, before it was counted.
    """

    is_duplicate: bool = False
    conflicts: int = 0


@dataclass(frozen=True)
class Addition:
    """What a call adds, by the keys of counters.

    Attributes:
        key: The only counter, whose idempotency keys are its own; None: a call for many.
    """

    deltas: Mapping[str, int]
    key: str | None
    idempotency_key: str | None = None

    @property
    def digest(self) -> str:
        exact = json.dumps(sorted(self.deltas.items()))
        return hashlib.sha256(exact.encode()).hexdigest()[:16]

    def receipt_key(self, declaration: str) -> Any:
        """Return the key of what proves it; it has an idempotency key."""
        assert self.idempotency_key is not None
        return receipt_key(declaration, self.key, self.idempotency_key)

    def different(self) -> DifferentItemError:
        return DifferentItemError(
            f"request {self.idempotency_key!r:.80} was made with other increments"
        )


def addition(
    deltas: Mapping[str, int], idempotency_key: str | None, *, is_many: bool = False
) -> Addition:
    """Return what a call adds.

    Raises:
        BadItemError: it cannot be added; the text says why.
    """
    if idempotency_key is not None and not 0 < len(idempotency_key) <= MAX_IDEMPOTENCY_KEY_CHARS:
        raise BadItemError(f"an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters")
    if not 0 < len(deltas) <= MAX_KEYS:
        raise BadItemError(f"a call increments 1 to {MAX_KEYS} counters")
    for key, delta in deltas.items():
        check_key(key)
        if type(delta) is not int or abs(delta) > MAX_DELTA:
            raise BadItemError(f"a delta is a whole number from -{MAX_DELTA} to {MAX_DELTA}")
    only = None if is_many else next(iter(deltas))
    return Addition(dict(deltas), only, idempotency_key)


def check_key(key: str) -> None:
    """Check that a counter may have this key.

    Raises:
        BadItemError: it may not.
    """
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise BadItemError("there is half a character in the key") from error
    if not 0 < size <= MAX_KEY_BYTES:
        raise BadItemError(f"a key has 1 to {MAX_KEY_BYTES} bytes")
