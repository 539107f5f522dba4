"""Errors of adding to, sealing, running again and reading batches."""

from __future__ import annotations


class BatchError(Exception):
    """Base class: nothing was changed."""


class BadWorkError(BatchError, ValueError):
    """This cannot be a member, or a batch cannot have this id; the text says why."""


class ClosedError(BatchError):
    """The batch is sealed or complete: it takes no further members."""


class DifferentWorkError(BatchError, ValueError):
    """Other members were added under this idempotency key before."""


class NestedError(BatchError):
    """The batch is a member of another one, and is run again with that; or a member is a batch."""


class UnknownBatchError(BatchError, LookupError):
    """There is no batch of this id, or its rows were deleted."""
