"""Errors that several patterns raise to their callers."""

from __future__ import annotations


class BadItemError(ValueError):
    """The item cannot be accepted; the text says why."""


class DifferentItemError(ValueError):
    """The idempotency key was already used with a different item."""


class OutcomeUnknownError(Exception):
    """The service did not answer, so the item may count or not.

    With an idempotency key it is safe to repeat the call, and the item counts once.
    """
