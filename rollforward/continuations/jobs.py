"""Jobs: the source that a continuation walks over, and the work on each item.

`side_effect` is for effects outside Datastore (a mail, a call): it acts first, and the receipts
follow. `apply` is for effects in Datastore: they commit with the receipts. `check` only looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from rollforward.continuations.entities import ContinuationRun
from rollforward.continuations.sources import FailedItems, Source
from rollforward.runtime.clients import Clients
from rollforward.tasks.arguments import ArgumentsCodec
from rollforward.tasks.errors import MAX_DELAY_S, BadArgumentsError, OtherVersionError
from rollforward.tasks.times import check_max_attempts

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741  An item.

PAGE_SIZE = 100
# The most keys that one lookup takes. A page is read at once, and is the unit of retries.
MAX_PAGE_SIZE = 1_000
MAX_ATTEMPTS = 5
# How long a page waits after the last sign of life of an attempt at it: what a crash costs. Work
# may last longer, as heartbeats keep the lease.
LEASE_S = 6.0
# An attempt that lasts longer hangs, or its request was given up: its page may be taken over.
DEADLINE_S = 600.0
# Of a lease and a deadline: no request lasts for longer.
MAX_HELD_S = 24 * 3600
# How long deferred items wait after each pass over their page: a relay that puts mails off
# means minutes.
RETRY_DELAYS_S = (5.0, 30.0, 120.0, 600.0)


class ItemError(Exception):
    """Base class for what may become of an item other than done."""


class RefusedItemError(ItemError):
    """This item can never be worked on; its text says why."""


class DeferredItemError(ItemError):
    """This item cannot be worked on now; its text says why."""


class SkippedItemError(ItemError):
    """Nothing has to be done for this item; its text says why."""


# Of the items of a page, one each; None: all are done.
ItemErrors = Sequence[ItemError | None] | None
# Opened once per page; works on one item, or raises one of the three errors above.
SideEffectFunction = Callable[[Clients, A], AbstractContextManager[Callable[[I], None]]]
# Runs inside the transaction, maybe more than once; per item None, or one of the three errors
# above. The items are as they were read before: read again, there, what you change.
ApplyFunction = Callable[[Clients, A, Sequence[I]], ItemErrors]
# Runs outside of any transaction; answers as Apply does. A crash repeats it.
CheckFunction = ApplyFunction[A, I]


def check_page_size(size: int) -> None:
    """Check how many items a task is to work on.

    Raises:
        ValueError: it is too few or too many.
    """
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise ValueError(f"page_size must be 1 to {MAX_PAGE_SIZE:,}, got {size}")


def check_rate(max_rate: float, page_size: int) -> None:
    """Check how many items a second a run may work on.

    Raises:
        ValueError: it is not positive, or so low that a page has its turn a month later.
    """
    if not (max_rate > 0 and page_size / max_rate <= MAX_DELAY_S):
        days = MAX_DELAY_S // (24 * 3600)
        raise ValueError(
            f"max_rate must be positive, and {page_size} items, a page, in {days} days at least, "
            f"got {max_rate}: a lower rate needs smaller pages (page_size)"
        )


def _check_pause(name: str, seconds: float) -> None:
    if not 0 < seconds <= MAX_HELD_S:
        raise ValueError(f"{name} must be above 0, and at most {MAX_HELD_S:,}, got {seconds}")


@dataclass(frozen=True)
class Job(Generic[A, I]):
    """A kind of run, declared by `@job`, whose arguments say what each field is."""

    name: str
    queue: str
    args: type[A]
    source: Callable[[A], Source[I]]
    side_effect: SideEffectFunction[A, I] | None = None
    apply: ApplyFunction[A, I] | None = None
    check: CheckFunction[A, I] | None = None
    on_finished: Callable[[Clients, A], object] | None = None
    page_size: int = PAGE_SIZE
    max_attempts: int = MAX_ATTEMPTS
    retry_delays_s: tuple[float, ...] = RETRY_DELAYS_S
    lease_s: float = LEASE_S
    deadline_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        check_page_size(self.page_size)
        check_max_attempts(self.max_attempts)
        delays_s = self.retry_delays_s
        if not delays_s or not all(0 <= delay_s < math.inf for delay_s in delays_s):
            raise ValueError(f"retry_delays_s must be at least 0 each, got {delays_s}")
        _check_pause("lease_s", self.lease_s)
        _check_pause("deadline_s", self.deadline_s)

    if not TYPE_CHECKING:  # A type checker says of itself that a job cannot be called.

        def __call__(self, *args: object, **options: object) -> NoReturn:
            raise TypeError(
                f"{self.name} is a job, which runs in tasks: to have it run, use "
                "continuations.start(clients, job, args, run_id=...)"
            )

    @cached_property
    def _codec(self) -> ArgumentsCodec[A]:
        return ArgumentsCodec(f"job {self.name}", self.args)

    def arguments_of(self, args: A | None) -> A:
        """Return the arguments of a run, or the defaults of its job.

        Raises:
            BadArgumentsError: it has some without a default.
        """
        if args is not None:
            return args
        try:
            return self.args()
        except TypeError as error:
            raise BadArgumentsError(f"job {self.name} needs its arguments: {error}") from error

    def dump(self, args: A) -> str:
        """Return a run's arguments as JSON.

        Raises:
            BadArgumentsError: they do not fit the declaration.
        """
        return self._codec.dump(args).decode()

    def load(self, args: str) -> A:
        """Return the arguments of a stored run.

        Raises:
            OtherVersionError: another version of the code has started it, and may read them.
        """
        try:
            return self._codec.read(args.encode())
        except BadArgumentsError as error:
            raise OtherVersionError(str(error)) from error

    def source_of(self, run: ContinuationRun) -> Source[I]:
        """Return the items of a run: all, or the failed ones of the run that it retries."""
        source = self.source(self.load(run.args))
        return FailedItems(source, run.retry_of) if run.retry_of else source


Jobs = Mapping[str, Job[Any, Any]]
