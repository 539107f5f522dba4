"""Idempotency keys: names that callers give to their requests, so that a repeated one counts once.

A request leaves a receipt under its key, with a digest of its item. A second request with the key
is a duplicate if the digests are equal, and an error if they differ.
"""

from __future__ import annotations

import hashlib

from rollforward.runtime.errors import BadItemError, DifferentItemError, OutcomeUnknownError

MAX_IDEMPOTENCY_KEY_CHARS = 200


def check_idempotency_key(key: str | None, error: type[ValueError] = BadItemError) -> None:
    """Check that a key, if there is one, has a length that a receipt's key takes.

    Raises:
        BadItemError, or `error`: it does not.
    """
    if key is not None and not 0 < len(key) <= MAX_IDEMPOTENCY_KEY_CHARS:
        raise error(
            f"idempotency key must have 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters, got {len(key)}"
        )


def digest_of(item: str) -> str:
    """Return the digest of an item, given as JSON, that its receipt keeps."""
    return hashlib.sha256(item.encode()).hexdigest()[:16]


def different_item(key: str | None, noun: str = "item") -> DifferentItemError:
    """Return the error of a key that was used with a different item before."""
    return DifferentItemError(
        f"idempotency key {key!r:.80} was already used with a different {noun}"
    )


def unknown_outcome(cause: Exception | None) -> OutcomeUnknownError:
    """Return the error of a commit that may have taken effect, or may yet."""
    error = OutcomeUnknownError("Datastore did not confirm the commit; it may count")
    error.__cause__ = cause
    return error
