"""Errors that several patterns raise to their callers, and whose fault an error is."""

from __future__ import annotations

import errno

from google.api_core import exceptions as rpc_errors
from google.auth.exceptions import GoogleAuthError


class BadItemError(ValueError):
    """The item cannot be accepted; the text says why."""


class DifferentItemError(ValueError):
    """The idempotency key was already used with a different item."""


class OutcomeUnknownError(Exception):
    """The service did not answer, so the item may count or not.

    With an idempotency key it is safe to repeat the call, and the item counts once.
    """


def is_outage(error: BaseException) -> bool:
    """Return whether a service or the machine is at fault, and not the data."""
    if isinstance(error, rpc_errors.InvalidArgument):  # An entity, or all of them, too large.
        return False
    if isinstance(error, OSError):  # `datetime.fromtimestamp` raises it for a time too far away.
        return error.errno != errno.EOVERFLOW
    return isinstance(error, (rpc_errors.GoogleAPIError, GoogleAuthError, MemoryError))
