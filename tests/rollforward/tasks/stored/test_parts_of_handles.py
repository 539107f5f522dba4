"""Handles, distant tasks and ids of arguments, without a store, and planted bugs."""

from __future__ import annotations

import datetime
import importlib
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore.expiry import expiry
from rollforward.runtime.messages import Message
from rollforward.tasks.errors import EndedError
from rollforward.tasks.stored import arguments, cancellation, distant, near
from rollforward.tasks.stored.cancellation import LIFE_IN_LANE, NAMED, TRACKED
from rollforward.tasks.stored.entities import (
    BEGUN,
    CANCELLED,
    GIVEN_UP,
    WAITING,
    CancellableTask,
    DistantTask,
    StoredArguments,
    distant_key,
    handle_key,
    stored_key,
)
from rollforward.tasks.stored.envelope import Envelope, split_envelope
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

# The package has functions of this module's name.
cancellable = importlib.import_module("rollforward.outbox.cancellable")

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
LIFE = arguments.LIFE


class Machine:
    """The clients of a process, at noon; the queue refuses tasks of some paths."""

    def __init__(self) -> None:
        self.created: list[Message] = []
        self.clock = SimpleNamespace(now=lambda: NOON)
        self.tasks = SimpleNamespace(create_all=self._create_each)

    def _create_each(self, messages: list[Message]) -> list[bool | Exception]:
        self.created += messages
        away = rpc_errors.ServiceUnavailable("away")
        return [away if message.path == "/away" else True for message in messages]


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with offline(), Memory() as stored:
        for module in (cancellation, cancellable, near):
            monkeypatch.setattr(module, "transact", stored.transact)
        yield


def hour(spread: str, at: datetime.datetime) -> str:
    return expiry(spread, at.replace(tzinfo=None))


def put_handle(handle: str, state: str = WAITING) -> None:
    Memory.current.put(CancellableTask(key=handle_key(handle), state=state, expires="then"))


def handle_of(handle: str) -> tuple[str, str | None, str] | None:
    row = Memory.current.get(handle_key(handle))
    return None if row is None else (row.state, row.dead_id, row.expires)


# Handles


@pytest.mark.parametrize(("due_h", "from_h"), [(None, 0), (-5, 0), (48, 48)])
@pytest.mark.parametrize("life", [LIFE, LIFE_IN_LANE])
def test_a_handle_stays_for_its_life_after_its_task_was_due(
    due_h: int | None, from_h: int, life: datetime.timedelta
) -> None:
    """H3: that of a task that should have run already, from now on."""
    machine: Any = Machine()
    due = None if due_h is None else NOON + datetime.timedelta(hours=due_h)
    cancellation.put_handle(machine, "c0ffee", due, life=life)
    until = NOON + datetime.timedelta(hours=from_h) + life
    assert handle_of("c0ffee") == (WAITING, None, hour("c0ffee", until))


def test_a_task_has_ended_although_its_handle_cannot_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H3: the handle expires; a mistake of the code is none of the service."""
    errors: list[Exception] = [rpc_errors.ServiceUnavailable("away"), KeyError("a mistake")]

    def delete() -> None:
        raise errors.pop(0)

    monkeypatch.setattr(cancellation, "handle_key", lambda handle: SimpleNamespace(delete=delete))
    cancellation.forget("c0ffee")
    with pytest.raises(KeyError):
        cancellation.forget("c0ffee")


_SOON = hour("c0ffee", NOON + LIFE)
PLAIN, NAMED_ONE, TRACKED_ONE = "c0ffee", "c0ffee" + NAMED, "c0ffee" + TRACKED


@pytest.mark.parametrize(
    ("end", "plain", "named", "tracked"),
    [
        ("forget", None, (BEGUN, None, "then"), None),
        ("give_up", None, (BEGUN, None, "then"), (GIVEN_UP, None, _SOON)),
        ("note_give_up", None, (BEGUN, None, "then"), (GIVEN_UP, None, _SOON)),
        ("note_death", (BEGUN, None, "then"), (BEGUN, None, "then"), (WAITING, "d1", "then")),
        ("abandon", (BEGUN, None, "then"), (BEGUN, None, "then"), (CANCELLED, None, _SOON)),
        ("expire_row", (BEGUN, None, _SOON), (BEGUN, None, _SOON), (BEGUN, None, "then")),
    ],
)
def test_each_kind_of_handle_says_what_became_of_its_task(
    end: str, plain: object, named: object, tracked: object
) -> None:
    """H3: a name is known for as long as it was promised, whatever became of its task."""
    machine: Any = Machine()
    calls: dict[str, Callable[[str], None]] = {
        "forget": cancellation.forget,
        "give_up": lambda handle: cancellation.give_up(machine, handle),
        "note_give_up": lambda handle: cancellation.note_give_up(machine, handle),
        "note_death": lambda handle: cancellation.note_death(handle, "d1"),
        "abandon": lambda handle: cancellation.abandon(machine, handle),
        "expire_row": lambda handle: cancellation.expire_row(machine, handle),
    }
    became = []
    for handle in (PLAIN, NAMED_ONE, TRACKED_ONE):
        put_handle(handle, BEGUN)
        put_handle("d" + handle)
        calls[end](handle)
        became.append(handle_of(handle))
        assert handle_of("d" + handle) == (WAITING, None, "then")

    assert became == [plain, named, tracked]


@pytest.mark.parametrize("state", [WAITING, BEGUN, CANCELLED, None])
def test_a_task_begins_or_is_cancelled_and_never_both(state: str | None) -> None:
    """H3: a second delivery begins as well, and a second call has cancelled it, too."""
    if state is not None:
        put_handle(PLAIN, state)
    assert cancellation.cancel(PLAIN) is (state in (WAITING, CANCELLED))
    if state in (WAITING, CANCELLED):
        with pytest.raises(EndedError):
            cancellation.begin(PLAIN)
    else:
        cancellation.begin(PLAIN)
    after = handle_of(PLAIN)
    assert (after and after[0]) == (CANCELLED if state == WAITING else state)


@pytest.mark.parametrize("in_lane", [False, True])
def test_a_task_that_can_be_cancelled_is_enqueued_once_for_its_name(
    monkeypatch: pytest.MonkeyPatch, in_lane: bool
) -> None:
    """B1: in a lane it has no name there, and its row stays for as long as it may wait."""
    machine: Any = Machine()
    waiting, tasks, due = list[Message](), list[Message](), NOON + datetime.timedelta(days=3)
    add = lambda clients, message: waiting.append(message)  # noqa: E731
    lane: Any = SimpleNamespace(add_in_transaction=add) if in_lane else None

    def message_of(args: Any, *, name: Any, delay_s: float, at: Any) -> Any:
        return machine, Message("/p", "q", b"{}", "|".join(name), at or due)

    monkeypatch.setattr(cancellable, "message_of", message_of)
    enqueue = lambda clients, message: tasks.append(message)  # noqa: E731
    monkeypatch.setattr(cancellable, "enqueue_message", enqueue)
    share = lambda clients, body: Memory.current.transact(lambda: body.run(body.reads(0)))  # noqa: E731
    monkeypatch.setattr(cancellable, "transact_shared", share)
    handles = [
        cancellable.enqueue_cancellable(machine, None, None, name=(name,), at=due, lane=lane)
        for name in ("a", "a", "b")
    ]
    track: Any = SimpleNamespace(path="/p")
    Memory.current.transact(
        lambda: cancellable.enqueue_tracked(machine, track, None, name=("t",), lane=lane)
    )
    tracked = cancellable.tracked_handle("/p", ("t",))

    life = LIFE_IN_LANE if in_lane else LIFE
    assert handles[0] == handles[1] != handles[2]
    for handle, begin in ((handles[0], due), (handles[2], due), (tracked, NOON)):
        assert handle_of(handle) == (WAITING, None, hour(handle, begin + life))
    sent = [(split_envelope(message.body).handle, message.name) for message in (waiting or tasks)]
    ids = (handles[0], handles[2], tracked)
    names = (None, None, None) if in_lane else ("a", "b", "t")
    assert (sent, bool(waiting)) == (list(zip(ids, names, strict=True)), in_lane)


# Distant tasks


def test_a_distant_task_is_written_once_and_by_the_call_that_wrote_it() -> None:
    """H3: also when the reply to its commit was lost; another call of its name hears of it."""
    due = NOON + datetime.timedelta(days=40)
    message = Message("/p", "q", b"{}", "n", due, max_attempts=3, deadline_s=900)
    row = distant._row_of(message, "n", "call-1")
    assert [distant._insert(row), distant._insert(row)] == [True, True]
    assert not distant._insert(distant._row_of(message, "n", "call-2"))
    stored = Memory.current.get(row.key)
    assert near._message(stored) == Message("/p", "q", b"{}", "n", due, 3, deadline_s=900)


def test_rows_of_distant_tasks_go_and_names_stay_until_the_queue_forgets_them() -> None:
    """H3: nine days after the task is due; a task that was not created waits on."""
    machine: Any = Machine()
    due = (NOON + datetime.timedelta(days=2)).replace(tzinfo=None)
    rows = [
        DistantTask(
            key=distant_key(row),
            path=path,
            queue="q",
            body="{}",
            due=due,
            waits_until=due,
            name=name,
        )
        for row, path, name in (("a", "/p", "n"), ("b", "/p", None), ("c", "/away", "m"))
    ]
    for row in rows:
        Memory.current.put(row)
    assert near._create(machine, rows, NOON) == (2, 0)

    named, unnamed, away = [Memory.current.get(row.key) for row in rows]
    assert (named.waits_until, named.expires) == (None, expiry("a", due + near.NAME_KNOWN))
    assert unnamed is None
    assert (away.waits_until, away.expires) == (due, None)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_row_that_another_sweep_has_ended_is_not_put_back(is_named: bool) -> None:
    """H3: it has been created since it was read, and Cloud Tasks does not answer this sweep."""
    due = (NOON + datetime.timedelta(days=1)).replace(tzinfo=None)
    fields = {"path": "/away", "queue": "q", "body": "{}", "due": due}
    if is_named:
        Memory.current.put(DistantTask(key=distant_key("a"), waits_until=None, **fields))
    read = DistantTask(key=distant_key("a"), waits_until=due, **fields)
    machine: Any = Machine()
    assert near._create(machine, [read], NOON) == (0, 0)

    stored = Memory.current.get(read.key)
    assert (stored is not None, stored and stored.waits_until) == (is_named, None)


# Arguments


def test_arguments_have_rows_of_their_own_unless_all_of_a_call_is_the_same() -> None:
    """H7: of two calls with one name and other arguments, too."""
    ids = {
        arguments._id_of(Message(path, "q", body, name), owner)
        for path, body, name, owner in itertools.product(
            ("/p", "/o"), (b"1", b"2"), ("n", "m", None), ("o1", "o2")
        )
    }
    assert len(ids) == 2 * 2 * (2 + 2)


def test_a_dead_task_holds_its_arguments_and_no_others() -> None:
    """H7: those of a task with a body of its own are put into rows, if they are large."""
    for stored_id in ("mine", "beside"):
        Memory.current.put(
            StoredArguments(key=stored_key(stored_id), chunks=1, size=7, expires="e")
        )
    body = Envelope(None, "mine", 1).body
    assert arguments.hold(body, "d1", 10) == body
    expires = [Memory.current.get(stored_key(name)).expires for name in ("mine", "beside")]
    assert expires == [None, "e"]
    assert arguments.hold(b"x" * 10, "d1", 10) == b"x" * 10
    held = split_envelope(arguments.hold(b"x" * 11, "d1", 10))
    assert arguments.load(held) == b"x" * 11
    assert Memory.current.get(stored_key(held.stored)).expires is None


_LIFE = test_a_handle_stays_for_its_life_after_its_task_was_due
_BECAME = test_each_kind_of_handle_says_what_became_of_its_task
_ONCE = test_a_task_that_can_be_cancelled_is_enqueued_once_for_its_name
_WRITTEN = test_a_distant_task_is_written_once_and_by_the_call_that_wrote_it
BUGS = (
    Bug(*(cancellation, "put_handle", "max(due or now_utc, now_utc)", "now_utc", _LIFE),
        {"due_h": 48, "from_h": 48, "life": LIFE}),
    Bug(*(cancellation, "put_handle", "max(due or now_utc, now_utc)", "(due or now_utc)", _LIFE),
        {"due_h": -5, "from_h": 0, "life": LIFE}),
    Bug(*(cancellation, "forget", "handle.endswith(NAMED)", "False", _BECAME),
        {"end": "forget", "plain": None, "named": (BEGUN, None, "then"), "tracked": None}),
    Bug(*(cancellation, "note_death", "state=WAITING, ", "", _BECAME),
        {"end": "note_death", "plain": (BEGUN, None, "then"), "named": (BEGUN, None, "then"),
         "tracked": (WAITING, "d1", "then")}),
    Bug(*(cancellable, "enqueue_cancellable", "body=wrapped, name=None)", "body=wrapped)", _ONCE),
        {"in_lane": True}),
    Bug(*(cancellable, "enqueue_cancellable", "handle, message.at, life", "handle, None, life"),
        _ONCE, {"in_lane": False}),
    Bug(*(cancellable, "enqueue_tracked", "LIFE if lane is None else LIFE_IN_LANE", "LIFE"),
        _ONCE, {"in_lane": True}),
    Bug(*(distant, "_insert", "stored.call_id == row.call_id", "False", _WRITTEN)),
    Bug(*(near, "_message", "row.deadline_s", "None", _WRITTEN)),
    Bug(*(near, "_create", "_due(row) + NAME_KNOWN", "now_utc + NAME_KNOWN"),
        test_rows_of_distant_tasks_go_and_names_stay_until_the_queue_forgets_them),
    Bug(*(arguments, "_id_of", "owner, digest)", "owner)"),
        test_arguments_have_rows_of_their_own_unless_all_of_a_call_is_the_same),
    Bug(*(arguments, "hold", "        _expire(stored_id, None)\n", ""),
        test_a_dead_task_holds_its_arguments_and_no_others),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """B1, H3, H7: each part of a handle, a name and an id is for something."""
    bug.check_noticed(monkeypatch)
