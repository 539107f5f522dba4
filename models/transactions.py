"""The one door to Datastore transactions.

A transaction body may run twice although its first run was committed: the reply was
lost and nobody can tell. So every body must carry its own proof (a receipt, a marker
with a sequence number, the deletion of the row that caused it), choose its keys before
it starts, and do nothing but read and write entities.

ndb's own retry is switched off: it sleeps for seconds, sleeps once more before it gives
up, and hides the real error in a RetryError. `transact` makes a few quick tries, about
half a second in all, and raises what the service said.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

T = TypeVar("T")

TRIES = 4
FIRST_PAUSE_S = 0.03
PAUSE_GROWTH = 3.0

# Aborted: the race was lost, nothing was written. The others: anybody's guess.
RETRIED = (
    rpc_errors.Aborted,
    rpc_errors.ServiceUnavailable,
    rpc_errors.InternalServerError,
    rpc_errors.Unknown,
)


def transact(
    body: Callable[[], T],
    *,
    tries: int = TRIES,
    pause: Callable[[float], None] = time.sleep,
    spread: Callable[[float, float], float] = random.uniform,
) -> T:
    """Run body in a transaction and return what it returned.

    Args:
        body: Reads and writes entities, and proves to itself that it has not run before.
        tries: How often the body may run, at least 1.
        pause: Waits between two tries; its argument is in seconds.
        spread: Picks a pause between two bounds, so that rivals part ways.

    Raises:
        google.api_core.exceptions.Aborted: every try lost its race.
        google.api_core.exceptions.GoogleAPICallError: what the last try got. When its
            class is not Aborted the commit may have taken effect all the same.
    """
    before = sys.exc_info()[1]
    for retry in range(tries):
        # Not `transaction`: raising in the caller's `except` block forgets what came first.
        future = ndb.transaction_async(body, retries=0)
        future.wait()
        error = future.exception()
        if error is None:
            return future.result()  # type: ignore[no-any-return]
        cause = _first_cause(error, before)
        if cause is None:
            raise error
        if retry == tries - 1:
            # Not "from error": cause stands in error's own chain, which would close on itself.
            raise cause from None
        longest_s = FIRST_PAUSE_S * PAUSE_GROWTH**retry
        pause(spread(longest_s / 3, longest_s))
    raise ValueError(f"tries must be at least 1, not {tries}")


def _first_cause(error: Exception, before: BaseException | None = None) -> Exception | None:
    """Return the earliest retried error of a chain, or None when the chain has none.

    ndb rolls back after a failed commit; when the commit had worked, the rollback fails
    in its turn and that second error is the one that surfaces. An error of the body's own
    is what it is, whatever it was made of.

    Args:
        before: What the caller was handling already; Python puts it at the chain's end.
    """
    if not isinstance(error, rpc_errors.GoogleAPIError):
        return None
    retried = [link for link in _chain(error, before) if isinstance(link, RETRIED)]
    return retried[-1] if retried else None


def _chain(
    error: BaseException | None, before: BaseException | None = None
) -> Iterator[BaseException]:
    seen = {id(before)}  # Chains may be circular.
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = error.cause if isinstance(error, rpc_errors.RetryError) else None
        error = inner or error.__cause__ or error.__context__
