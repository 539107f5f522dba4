"""Increments: the checked arguments of one call, and the receipt that makes it repeatable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rollforward.counters.entities import receipt_key
from rollforward.fork_join.items import check_key
from rollforward.runtime.errors import BadItemError, DifferentItemError
from rollforward.runtime.idempotency import check_idempotency_key, different_item, digest_of

# A shard has room for nine million of the largest; the service stops at 2**63 silently.
MAX_DELTA = 10**12
MAX_KEYS = 100
# A task may be delivered for 31 days: until then its idempotency key must be remembered.
RECEIPTS_FOR = timedelta(days=32)


@dataclass(frozen=True)
class Counted:
    """An increment that counts. `is_duplicate`: it was counted before, under its idempotency key.

    `conflicts` are the commits that lost a race, or waited for one, before it was counted.
    """

    is_duplicate: bool = False
    conflicts: int = 0


@dataclass(frozen=True)
class IncrementRequest:
    """The increments of one call, by the keys of counters.

    Attributes:
        key: The only counter, which has its own idempotency keys; None: a call for many.
    """

    deltas: Mapping[str, int]
    key: str | None
    idempotency_key: str | None = None

    @property
    def digest(self) -> str:
        return digest_of(json.dumps(sorted(self.deltas.items())))

    def receipt_key(self, declaration: str) -> Any:
        """Return the key of its receipt; None: it has no idempotency key."""
        if self.idempotency_key is None:
            return None
        return receipt_key(declaration, self.key, self.idempotency_key)

    def different(self) -> DifferentItemError:
        return different_item(self.idempotency_key, "increment")


def increment_request(
    deltas: Mapping[str, int], idempotency_key: str | None, *, is_many: bool = False
) -> IncrementRequest:
    """Return the checked request of a call.

    Raises:
        BadItemError: an argument is out of range.
    """
    check_idempotency_key(idempotency_key)
    if not 0 < len(deltas) <= MAX_KEYS:
        raise BadItemError(f"a call must increment 1 to {MAX_KEYS} counters, got {len(deltas)}")
    keys = list(map(check_key, deltas))
    for delta in deltas.values():
        if type(delta) is not int or abs(delta) > MAX_DELTA:
            raise BadItemError(
                f"delta must be an int from -{MAX_DELTA} to {MAX_DELTA}, got {delta!r:.40}"
            )
    only = None if is_many else keys[0]
    return IncrementRequest(dict(zip(keys, deltas.values(), strict=True)), only, idempotency_key)
