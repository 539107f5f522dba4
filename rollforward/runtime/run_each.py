"""Act on each of many, so that one that fails stops none of the others."""

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
    """What the actions returned and raised, and how many were tried."""

    returned: list[T] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    is_cut_short: bool = False

    @property
    def tried(self) -> int:
        return len(self.returned) + len(self.errors)

    def raise_first(self, *kinds: type[Exception]) -> None:
        """Raise the first error that is of one of some kinds, by default of any."""
        for error in self.errors:
            if isinstance(error, kinds or Exception):
                raise error


def run_each(
    actions: Iterable[tuple[str, Callable[[], T]]], *, max_unavailable: int | None = None
) -> Results[T]:
    """Run every action; log the errors, and return them with the results.

    Args:
        actions: What to run, each with what the log says when it fails.
        max_unavailable: After so many transient errors in a row a service does not answer: the
            rest is not tried. None: all are.
    """
    results: Results[T] = Results()
    in_a_row = 0
    for complaint, act in actions:
        try:
            results.returned.append(act())
            in_a_row = 0
        except Exception as error:
            is_transient = isinstance(error, TRANSIENT)
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
