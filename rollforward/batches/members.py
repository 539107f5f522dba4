"""Members at work: a task runs its function and says how that ended.

A member is delivered at least once, as every task. Its function may run again although its end
was counted; then the second end changes nothing. A member of a batch that is over does not run.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollforward.batches import policy
from rollforward.batches.adding.creation import RunMember
from rollforward.batches.adding.populate import Members, PopulateOptions, populate, renew
from rollforward.batches.completion import (
    MAX_ERROR_CHARS,
    MAX_RESULT_BYTES,
    End,
    cancel_child,
    end_members,
)
from rollforward.batches.declaration import BatchDeclaration, MemberRef
from rollforward.batches.entities import BatchState, batches_of, state_key
from rollforward.batches.errors import BatchError, NestedError
from rollforward.batches.running_cache import accepts_members
from rollforward.fork_join import OutcomeUnknownError
from rollforward.runtime.clients import Clients
from rollforward.runtime.texts import storable, within_json
from rollforward.tasks.declaration import Task, hashed_name
from rollforward.tasks.errors import BadArgumentsError, OtherVersionError, Reject


class Declared(Protocol):
    """A batch as its members see it: `TaskBatch`, which stands above them."""

    @property
    def declaration(self) -> BatchDeclaration: ...


MAX_INSERTS = 3
MAX_BECOME = 100  # One, and more only if deliveries that overlap nest in different declarations.


class NoMemberError(BatchError):
    """This code runs in no member of a batch."""


@dataclass
class Member:
    """The member that this code runs as."""

    clients: Clients
    declared: BatchDeclaration
    ref: MemberRef
    is_nested: bool = False  # It ends when the batch does that it has become.
    # By key, or by the batch that it became: the members that this delivery has given.
    _work: dict[str, list[Any]] = field(default_factory=dict, init=False, repr=False)

    @property
    def id(self) -> str:
        """Return an id that is the same in every delivery and generation of this member."""
        return f"{self.ref.page}:{self.ref.position}"

    @property
    def batch_id(self) -> str:
        """Return the id of the batch that this is a member of."""
        return self.ref.batch.partition(":")[2]

    def is_cancelled(self) -> bool:
        """Return whether the batch is over, so that the end of this member is not counted."""
        return not policy.is_waiting_for(_read(self.ref.batch), self.ref.generation)

    def add(self, members: Members, *, idempotency_key: str = "") -> int:
        """Add members to the batch, also when it is sealed; return how many are new.

        Args:
            idempotency_key: Sets two additions of one member apart.

        Raises:
            DifferentWorkError: this delivery has added other members under this key.
            BatchError: none was added, and why.
        """
        key = hashed_name(self.id, idempotency_key)
        work = list(members)
        options = PopulateOptions(key, adder=self.ref, is_compared=self._are_others(key, work))
        count = populate(self.clients, self.declared, self.ref.batch, work, options)
        if work:
            self._work.setdefault(key, work)
        return count

    def nest(self, batches: Declared, members: Members) -> str:
        """Become a batch: this member ends when all that is given here has; return the batch's id.

        Called again, as when this member is delivered twice, it changes nothing.

        Raises:
            ClosedError: this member has ended, or was cancelled.
            NestedError: it has become a batch of another declaration.
            DifferentWorkError: this delivery has given other members before.
            BatchError: no batch was made, and why.
        """
        child_id = hashed_name(self.id)
        child = batches.declaration.key(child_id)
        self._check_nests_once(child)
        work = list(members)
        are_others = self._are_others(child, work)
        options = PopulateOptions(seal=True, parent=self.ref, is_compared=are_others)
        if not populate(self.clients, batches.declaration, child, work, options):
            renew(self.clients, child, self.ref)
        self._work.setdefault(child, work)
        self.is_nested = True
        return child_id

    def _are_others(self, key: str, work: list[Any]) -> bool:
        """Return whether this delivery has given other members before, which would be lost.

        Another delivery may give others, and changes nothing.
        """
        return self._work.get(key, work) != work

    def _check_nests_once(self, child: str) -> None:
        for other in batches_of(self.id).fetch(2, keys_only=True):
            if other.id() != child:
                raise NestedError(f"{self.id} is the batch {other.id()}: it cannot become {child}")


_local = threading.local()


def current_member() -> Member:
    """Return the member that this code runs as.

    Raises:
        NoMemberError: it runs in no member of a batch.
    """
    member: Member | None = getattr(_local, "member", None)
    if member is None:
        raise NoMemberError("current_member() must be called by the task of a member of a batch")
    return member


@contextlib.contextmanager
def _inside(member: Member) -> Iterator[None]:
    outer = getattr(_local, "member", None)
    _local.member = member
    try:
        yield
    finally:
        _local.member = outer


def run(declared: BatchDeclaration, task: Task[Any], clients: Clients, args: RunMember) -> None:
    """Run a member, and say that it is done.

    Raises:
        OtherVersionError: the next version of the code may read the member's arguments.
        Exception: what its function raised: it is retried, or has failed.
    """
    if not accepts_members(clients, args.batch, args.generation):
        return
    try:
        own_args = task.read(args.args.encode())
    except BadArgumentsError as error:
        raise OtherVersionError(str(error)) from error
    ref = MemberRef(args.batch, args.page, args.position, args.generation)
    member = Member(clients, declared, ref)
    with _inside(member):
        result: Any = task.work(clients, own_args)
    if not member.is_nested:
        _check_result(task, result)
        _end(declared, clients, args, is_done=True, result=result)


def fail(declared: BatchDeclaration, clients: Clients, args: RunMember, reason: str) -> None:
    """Say that a member has failed: it was tried often enough, or raised `Reject`.

    A batch that it has become is cancelled first: no batch is complete over one that runs.
    """
    last_line = reason.strip().splitlines()[-1] if reason.strip() else "no reason was given"
    error = within_json(storable(last_line, MAX_ERROR_CHARS), MAX_RESULT_BYTES)
    for child in batches_of(f"{args.page}:{args.position}").fetch(MAX_BECOME, keys_only=True):
        cancel_child(clients, child.id(), args.generation, error)
    _end(declared, clients, args, is_done=False, error=error)


def _end(
    declared: BatchDeclaration,
    clients: Clients,
    args: RunMember,
    *,
    is_done: bool,
    result: Any = None,
    error: str = "",
) -> None:
    """Insert the end of a member. It may be inserted more than once: one is counted."""
    end = End(args.page, args.position, args.generation, is_done, result, error)
    for attempt in range(MAX_INSERTS):
        try:
            end_members.insert(clients, args.batch, end)
        except OutcomeUnknownError:
            if attempt == MAX_INSERTS - 1:
                raise
        else:
            return


def _check_result(task: Task[Any], result: Any) -> None:
    try:
        size = len(json.dumps(result, allow_nan=False))
        json.dumps(result, ensure_ascii=False).encode()  # Half a character is no text.
    except (TypeError, ValueError) as error:
        raise Reject(f"the result of {task.function} must be JSON: {error}") from error
    if size > MAX_RESULT_BYTES:
        raise Reject(
            f"the result of {task.function} must have at most {MAX_RESULT_BYTES} bytes, got {size}"
        )


def _read(batch: str) -> BatchState | None:
    return state_key(batch).get()  # type: ignore[no-any-return]
