"""Receipts: what became of each item of a page, one letter and perhaps a reason."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from rollforward.continuations.entities import DONE, FAILED, RETRYING, SKIPPED, ContinuationPage
from rollforward.continuations.jobs import (
    DeferredItemError,
    ItemError,
    Job,
    RefusedItemError,
    SkippedItemError,
)
from rollforward.runtime.texts import describe_error, storable, within_json

# A page's row of 1 MiB has the reasons of 1,000 items in JSON, and the names of the items besides.
MAX_REASON_BYTES = 600
# An item's letter, and the reason when there is one.
Receipt = tuple[str, str]


def receipt_of(error: ItemError | None) -> Receipt:
    """Return the receipt of an item that ended so; None: it is done.

    Raises:
        TypeError: a job has returned something else: the item may be done, or not.
    """
    return _letter(error), within_json(storable(str(error or ""), 300), MAX_REASON_BYTES)


def _letter(error: object) -> str:
    match error:
        case None:
            return DONE
        case SkippedItemError():
            return SKIPPED
        case RefusedItemError():
            return FAILED
        case ItemError():
            return RETRYING
        case _:
            raise TypeError(
                f"a job must return None or an ItemError for each item, got {error!r:.100}"
            )


def unexpected(error: BaseException) -> ItemError:
    """Return what becomes of an item for which the job raised an error that is no ItemError."""
    return DeferredItemError(describe_error(error))


def gone() -> ItemError:
    """Return what becomes of an item that was deleted before it was worked on."""
    return SkippedItemError("gone before its turn")


def record(
    page: ContinuationPage, job: Job[Any, Any], outcomes: Mapping[int, Receipt], *, is_last: bool
) -> None:
    """Put receipts into a page's row.

    Args:
        outcomes: Receipts by position.
        is_last: Each open item was tried once more: deferred items wait for the next
            attempt, or have failed if that was the last one.
    """
    receipts = list(page.receipts)
    reasons = dict(page.reasons)
    for position, (letter, reason) in outcomes.items():
        receipts[position] = letter
        reasons.pop(str(position), None)
        if reason:
            reasons[str(position)] = reason
    if is_last and RETRYING in receipts:
        page.attempts += 1
        delays_s = job.retry_delays_s
        delay_s = delays_s[min(page.attempts, len(delays_s)) - 1]
        page.retry_at = page.updated_at + datetime.timedelta(seconds=delay_s)
        if page.attempts >= job.max_attempts:
            receipts = [FAILED if letter == RETRYING else letter for letter in receipts]
    page.receipts = "".join(receipts)
    page.reasons = reasons
    page.done = not page.open_positions()
