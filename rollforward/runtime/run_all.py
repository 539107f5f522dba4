"""Run many actions, so that one failure stops none of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rollforward.datastore.transactions import TRANSIENT

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class Results(Generic[T]):
    """The results and errors of the actions, and how many were tried."""

    returned: list[T] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    is_cut_short: bool = False

    @property
    def attempted(self) -> int:
        return len(self.returned) + len(self.errors)

    def raise_first(self, *kinds: type[Exception]) -> None:
        """Raise the first error of the given kinds, by default of any kind."""
        for error in self.errors:
            if isinstance(error, kinds or Exception):
                raise error


def run_all(
    actions: Iterable[tuple[str, Callable[[], T]]], *, max_unavailable: int | None = None
) -> Results[T]:
    """Run every action; log the errors, and return them with the results.

    Args:
        actions: Each with the text that is logged if it fails.
        max_unavailable: The number of transient errors in a row after which the service counts as
            down, and the rest is not tried. None: all are tried.
    """
    results: Results[T] = Results()
    in_a_row = 0
    for complaint, act in actions:
        try:
            results.returned.append(act())
            in_a_row = 0
        except Exception as error:
            is_transient = _is_transient(error)
            if is_transient:
                log.warning("%s: %s", complaint, error)
            else:
                log.exception("%s", complaint)
            results.errors.append(error)
            in_a_row = in_a_row + 1 if is_transient else 0
            if in_a_row == max_unavailable:
                results.is_cut_short = True
                break
    return results


def _is_transient(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, is a service's and passes.

    Patterns have errors of their own for an outage. A traceback of it, in each sweep of each of
    them, says nothing more.
    """
    while error is not None and not isinstance(error, TRANSIENT):
        error = error.__cause__
    return error is not None
