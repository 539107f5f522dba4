"""Optimistic retry: prepare a commit from fresh rows until it is applied."""

from __future__ import annotations

from collections.abc import Callable

from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    OutcomeUnknownError,
    Steps,
)

MAX_ATTEMPTS = 20


class StaleReadError(Exception):
    """The rows that were read do not belong together: one has changed in between."""


def retry_commit(prepare: Callable[[Exception | None], Steps[Commit | None]]) -> Steps[bool]:
    """Prepare and commit, again after a stale read, a lost race or an unknown outcome.

    Args:
        prepare: Reads rows and returns a commit; None: there is nothing to do, or an earlier
            attempt has done it. Its argument is the error of the last commit: `ChangedError`,
            `OutcomeUnknownError`, or None at first.

    Returns:
        Whether a commit was tried.

    Raises:
        ChangedError: every attempt failed; the last one may have been applied after all.
    """
    failure: Exception | None = None
    for _ in range(MAX_ATTEMPTS):
        try:
            commit = yield from prepare(failure)
        except StaleReadError:
            continue
        if commit is None:
            return failure is not None
        try:
            yield commit
        except (ChangedError, OutcomeUnknownError) as error:
            failure = error
        else:
            return True
    raise ChangedError
