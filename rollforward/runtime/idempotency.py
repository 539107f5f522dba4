"""Idempotency keys: names that callers give to their requests, so that a repeated one counts once.

A request leaves a receipt under its key, with a digest of its item. A second request with the key
is a duplicate if the digests are equal, and an error if they differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from rollforward.runtime.errors import BadItemError, DifferentItemError, OutcomeUnknownError

Q = TypeVar("Q")
A = TypeVar("A")

MAX_IDEMPOTENCY_KEY_CHARS = 200


def check_idempotency_key(key: object, error: type[ValueError] = BadItemError) -> None:
    """Check that a key, if there is one, has a length that a receipt's key takes.

    Raises:
        BadItemError, or `error`: it does not.
    """
    if key is not None and not isinstance(key, str):
        raise error(f"idempotency key must be a text, got {key!r:.100}")
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


class RequestGroup(Generic[Q, A]):
    """Requests that share commits, and their answers.

    A request is open until it has an answer. If several need one receipt, the first of them is
    committed, and the others are answered as its duplicates.

    Attributes:
        answers: By the position of a request in the group.
        stored: Receipts of earlier commits, by the position of the first request that needs each.
        firsts: The first request that needs a receipt, by the receipt's key.
    """

    def __init__(self, requests: Sequence[Q], receipt_keys: Sequence[Any | None]) -> None:
        self.requests = requests
        self.answers: dict[int, A | Exception] = {}
        self.stored: dict[int, Any] = {}
        self.firsts: dict[Any, int] = {}
        self._first_of = [
            i if key is None else self.firsts.setdefault(key, i)
            for i, key in enumerate(receipt_keys)
        ]

    def open(self) -> list[int]:
        """Return the requests without an answer that are no duplicates of others here."""
        return [i for i, j in enumerate(self._first_of) if i == j and i not in self.answers]

    def find_stored(self, key: Any, receipt: Any) -> None:
        """Answer a request whose receipt an earlier commit has stored."""
        i = self.firsts[key]
        self.stored[i] = receipt
        self.answers[i] = self.duplicate_of(i, receipt)

    def all_results(self) -> list[A | Exception]:
        """Return an answer for each request."""
        return [self._result(i, first) for i, first in enumerate(self._first_of)]

    def _result(self, i: int, first: int) -> A | Exception:
        answer = self.answers[first]
        if first == i:
            return answer
        if first in self.stored:  # Of an earlier commit, of either request.
            return self.duplicate_of(i, self.stored[first])
        return answer if isinstance(answer, Exception) else self.repeated(i, first, answer)

    def duplicate_of(self, i: int, receipt: Any) -> A | Exception:
        """Return the answer of a request whose receipt was stored before."""
        raise NotImplementedError

    def repeated(self, i: int, first: int, answer: A) -> A | Exception:
        """Return the answer of a request that repeats the first one, which has this answer."""
        raise NotImplementedError
