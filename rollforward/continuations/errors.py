"""Errors of showing, starting, cancelling and retrying runs."""

from __future__ import annotations

from rollforward.tasks.runs import UnknownRunError as UnknownRunError


class NotEndedError(Exception):
    """The run has not finished."""


class PagesGoneError(Exception):
    """The run's pages were deleted, and with them which of its items failed."""


class OtherJobError(ValueError):
    """The run of this id is of another job."""
