"""Plans, claims and ends of a turn, and the sweep of keys, without a store; planted bugs."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.batches.adding.populate import MAX_PAGE_MEMBERS
from rollforward.lanes import Lane, adding, sweep
from rollforward.lanes.adding import PlacedMessage
from rollforward.lanes.rows.entities import (
    Claim,
    LaneState,
    LaneTask,
    id_at,
    place_of,
    state_key,
    task_key,
)
from rollforward.lanes.runs import claims, ends, lookups
from rollforward.lanes.runs.claims import Claimed, Rest
from rollforward.lanes.runs.ends import Dead, Later
from rollforward.runtime.channel import limits
from rollforward.runtime.messages import Message
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
KEY = "mail|ada"


class Machine:
    """The clients of a process: at noon, with tasks, hints and memcached in memory."""

    def __init__(self) -> None:
        self.created: list[Any] = []
        self.cached: dict[str, bytes] = {}
        numbers = itertools.count()
        self.new_id = self.new_owner = lambda: f"id{next(numbers)}"
        self.clock = SimpleNamespace(now=lambda: NOON, sleep=lambda seconds: None)
        self.tasks = SimpleNamespace(create=self.created.append)
        self.datastore = SimpleNamespace(project="p", database=None, namespace="n")
        self.process_state = SimpleNamespace(get_or_create=lambda name, make: make())
        self.processes = SimpleNamespace(is_dead=lambda owner: owner == "dead")
        self.random = SimpleNamespace(choice=lambda letters: letters[0])
        self.cache = SimpleNamespace(
            get=self.cached.get,
            set=lambda name, value, ttl_s: self.cached.update({name: value}),
            delete=lambda name: self.cached.pop(name, None),
        )


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with offline(), Memory():
        for module in (claims, ends):
            monkeypatch.setattr(module, "transact_by_version", lambda clients, body: body())
        yield


def lane_of(**options: Any) -> Any:
    task = SimpleNamespace(
        message=lambda args, name, at: (args, name, at), enqueue_many=lambda clients, hints: None
    )
    given = {"order": False, "rate": None, "limit": 3, "weight": 1, "on_dead": "pass"}
    known = {"name": "mail", "queue": "q", "due_at": lambda task, state: NOON}
    return SimpleNamespace(**{**known, **given, "task": task, **options})


def put_task(name: str, not_before_s: float | None = None, **values: Any) -> LaneTask:
    until = None if not_before_s is None else NOON + datetime.timedelta(seconds=not_before_s)
    row = LaneTask(
        key=task_key(name), place=name, path="/p", body="{}", added=None,
        not_before=until and until.replace(tzinfo=None), **values,
    )  # fmt: skip
    Memory.current.put(row)
    return row


def state_with(*owners: str, **values: Any) -> LaneState:
    state = LaneState(key=state_key(KEY), stamp="before", **values)
    state.set_claims([Claim(owner, (f"of {owner}",)) for owner in owners])
    Memory.current.put(state)
    return state


def stored_state() -> LaneState | None:
    return Memory.current.get(state_key(KEY))  # type: ignore[no-any-return]


# Plans


@pytest.mark.parametrize(
    ("ahead", "order", "claimed", "taken"),
    [
        ("....", False, 0, "ab"),
        ("....", False, 1, "ab"),
        ("....", False, 2, "abcd"),
        (".....", False, 0, "abcd"),
        ("+...", False, 0, "b"),
        ("+.+.", False, 0, "b"),
        ("++++", False, 0, 1),
        ("+...", True, 0, 1),
        ("", False, 1, None),
    ],
)
def test_a_delivery_claims_its_share_of_what_is_due(
    monkeypatch: pytest.MonkeyPatch, ahead: str, order: bool, claimed: int, taken: str | int | None
) -> None:
    """K4: others have a share as well; in an order none passes the first one."""
    rows = [
        put_task(letter, number + 1 if sign == "+" else None)
        for number, (letter, sign) in enumerate(zip("abcde", ahead, strict=False))
    ]
    monkeypatch.setattr(claims.lookups, "next_tasks", lambda *args: rows)
    monkeypatch.setattr(claims.lookups, "size_of", lambda lane, state: 4)
    state = state_with(*[str(number) for number in range(claimed)], head="x" if order else None)
    plan = claims._plan(Machine(), lane_of(order=order), KEY, state)  # type: ignore[arg-type]

    if isinstance(taken, str):
        assert isinstance(plan, Claimed)
        assert "".join(task.key.id() for task in plan.tasks) == taken
        assert plan.claim.tasks == tuple(taken)
        due = sum(sign == "." for sign in ahead)
        assert plan.has_more is (due > len(taken))
    else:
        until = None if taken is None else NOON + datetime.timedelta(seconds=taken)
        assert plan == Rest(until)


@pytest.mark.parametrize(
    ("owners", "next_hint", "goes_on", "is_mine"),
    [
        ("", None, "", True),
        ("", "h1", "h1", True),
        ("", "h2", "h1", False),
        ("ab", None, "", True),
        ("abc", None, "", False),
        ("abc", "h1", "h1", False),
    ],
)
def test_a_hint_whose_key_is_served_ends(
    monkeypatch: pytest.MonkeyPatch, owners: str, next_hint: str, goes_on: str, is_mine: bool
) -> None:
    """K5: of two hints that go on one does; at the limit who gives a claim back looks for more."""
    machine: Any = Machine()
    mark = claims.hints._mark(machine, KEY)
    machine.cached[mark] = b"marked"
    state_with(*owners, next_hint=next_hint)
    claim = Claim("mine", ("a",))
    plan = Claimed(claim, [put_task("a")], has_more=False)
    monkeypatch.setattr(claims, "_plan", lambda *args: plan)
    taken = claims.take(machine, lane_of(), KEY, watches=False, goes_on=goes_on)

    state = stored_state()
    assert state is not None
    assert (state.claim_of("mine") == claim) is is_mine
    assert isinstance(taken, Claimed) is is_mine
    assert (mark in machine.cached) is not is_mine


@pytest.mark.parametrize("order", [False, True])
def test_the_first_task_of_a_claim_is_the_head_of_its_order(order: bool) -> None:
    """K4: so that none passes it, whatever becomes of the delivery."""
    claim = Claim("mine", ("b", "c"))
    plan = Claimed(claim, [put_task("b"), put_task("c")], has_more=True, goes_on="h9")
    seen = state_with("other", head="a" if order else None)
    assert claims._claim(Machine(), lane_of(order=order), KEY, seen, plan)  # type: ignore[arg-type]
    state = stored_state()
    assert state is not None
    assert (state.head, state.next_hint) == ("b" if order else None, "h9")
    assert [its.owner for its in state.claims] == ["other", "mine"]


@pytest.mark.parametrize(
    ("waits", "order", "is_due"),
    [("+", False, False), ("+", True, True), ("+.", False, True), ("", True, False)],
)
def test_a_key_has_a_task_that_is_due(
    monkeypatch: pytest.MonkeyPatch, waits: str, order: bool, is_due: bool
) -> None:
    """K5: in an order also one that waits, as who takes it finds out until when."""
    rows = [put_task(str(n), 5 if sign == "+" else None) for n, sign in enumerate(waits)]
    monkeypatch.setattr(lookups, "next_tasks", lambda *args: rows)
    machine: Any = Machine()
    assert lookups.has_due_task(machine, lane_of(order=order), KEY, frozenset()) is is_due


# Ends


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("order", [False, True])
def test_a_task_that_waits_is_behind_others_or_in_an_order_at_its_place(
    monkeypatch: pytest.MonkeyPatch, order: bool, is_there: bool
) -> None:
    """K7: a reply that was lost moves it once; without its claim a delivery changes nothing."""
    kept: list[bytes] = []
    monkeypatch.setattr(ends.arguments, "keep", lambda clients, body: kept.append(body))
    hinted: list[object] = []
    monkeypatch.setattr(ends.hints, "hint_at", lambda *args: hinted.append(args[-1]))
    machine: Any = Machine()
    state = state_with("mine", head="x" if order else None)
    since = datetime.datetime(2030, 5, 1, 11)  # noqa: DTZ001
    task = put_task(id_at(KEY, 7, "c0ffee"), failures=1, unknown_since=since)
    holder: Any = SimpleNamespace(
        clients=machine, lane=lane_of(order=order), lane_id=KEY, claim=state.claims[0]
    )
    if not is_there:
        state.set_claims([])
        Memory.current.put(state)
    until = NOON + datetime.timedelta(seconds=2)
    moved = task_key(id_at(KEY, place_of(until), "c0ffee"))
    ended = [ends.reschedule(holder, task, ends.unknown("new")) for _ in range(2 if order else 1)]
    if not order:
        ended.append(ends.reschedule(holder, task, ends.unknown("new")))

    pause = datetime.timedelta(seconds=ends.VERSION_PAUSE_S)
    moved = task_key(id_at(KEY, place_of(NOON + pause), "c0ffee"))
    place, elsewhere = (task.key, moved) if order or not is_there else (moved, task.key)
    row = Memory.current.get(place)
    assert Memory.current.get(elsewhere) is None
    assert ended == [is_there] * 2
    assert len(kept) == len(hinted) == (2 if is_there else 0)
    assert row.unknown_since == since
    assert row.not_before == ((NOON + pause).replace(tzinfo=None) if is_there else None)
    after = stored_state()
    assert after is not None
    assert after.head == ((row.key.id() if is_there else "x") if order else None)


@pytest.mark.parametrize(
    ("failures", "handler", "end"),
    [
        (0, None, "buried"),
        (3, "handles", "handled"),
        (3, "fails", "later"),
        (5, "fails", "later"),
        (6, "fails", "buried"),
        (3, "cannot read", "buried"),
    ],
)
def test_a_task_is_given_up_by_its_handler_as_long_as_that_may_fail(
    monkeypatch: pytest.MonkeyPatch, failures: int, handler: str | None, end: str
) -> None:
    """K7: it becomes a dead task in the end."""
    ended: list[str] = []

    def handle(clients: object, args: object, reason: str) -> None:
        if handler == "fails":
            raise KeyError

    def begin(clients: object, body: bytes) -> bytes:
        if handler == "cannot read":
            raise ends.BadArgumentsError
        return body

    monkeypatch.setattr(ends, "deliveries", SimpleNamespace(begin=begin))
    monkeypatch.setattr(ends, "_keep_dead_task", lambda *args: ended.append("buried"))
    monkeypatch.setattr(ends, "_finish_all", lambda *a, **o: ended.append("handled"))
    declared: Any = SimpleNamespace(
        on_give_up=handle if handler else None, read=lambda body: body, max_attempts=3
    )
    holder: Any = SimpleNamespace(clients=Machine())
    became = ends.give_up(holder, put_task("a", failures=failures), declared, "bad")

    assert ended == ([] if end == "later" else [end])
    assert isinstance(became, Later if end == "later" else Dead)
    if isinstance(became, Later):
        assert (became.failures, became.is_failure) == (failures + 1, True)


@pytest.mark.parametrize("is_mine", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_who_buries_a_task_holds_its_claim(
    monkeypatch: pytest.MonkeyPatch, blocks: bool, is_mine: bool
) -> None:
    """K7: the task that is tracked hears of it, and a key that is to be blocked is."""
    noted: list[str] = []
    letter = lambda clients, **fields: noted.append(fields["lane_task"])  # noqa: E731
    monkeypatch.setattr(ends.dead_tasks, "dead_letter_in_transaction", letter)
    note = lambda handle, dead_id: noted.append(dead_id)  # noqa: E731
    monkeypatch.setattr(ends.cancellation, "note_death", note)
    state = state_with("mine" if is_mine else "other")
    task = put_task(id_at(KEY, 7, "c0ffee"))
    lane = lane_of(order=blocks, on_dead="block" if blocks else "pass")
    claim = Claim("mine", (task.key.id(),))
    holder: Any = SimpleNamespace(clients=Machine(), lane=lane, lane_id=KEY, claim=claim)
    ends._keep_dead_task(holder, task, "bad")

    dead_id = ends.hashed_name("lane", task.key.id())
    assert noted == ([task.key.id(), dead_id] if is_mine else [])
    assert (Memory.current.get(task.key) is None) is is_mine
    state = stored_state()
    assert state is not None
    assert state.blocked_by == (dead_id if blocks and is_mine else None)


# Adding, and the sweep


@pytest.mark.parametrize("there", ["", "b", "abc"])
def test_messages_that_have_their_places_let_the_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    """K2: what waits stays as it is."""
    hinted: list[str] = []
    hint = lambda clients, task, lane_ids: hinted.extend(lane_ids)  # noqa: E731
    monkeypatch.setattr(adding.hints, "hint_later", hint)
    monkeypatch.setattr(adding, "commit_of_puts", lambda client, puts: [row for row, _ in puts])

    def apply(clients: object, rows: list[LaneTask]) -> None:
        if there:
            raise rpc_errors.AlreadyExists("one")  # type: ignore[no-untyped-call]
        ndb.put_multi(rows)

    monkeypatch.setattr(adding, "apply_together", apply)
    lane: Any = type("Declared", (), {"task": None})()
    key: Any = SimpleNamespace(id=KEY, lane=lane)
    placed = [
        PlacedMessage(key, place, letter, Message(f"/{letter}", "q", b"{}"))
        for place, letter in enumerate("abc")
    ]
    for letter in there:
        put_task(id_at(KEY, "abc".index(letter), letter))
    adding.add_placed(Machine(), placed)  # type: ignore[arg-type]

    paths = [Memory.current.get(task_key(id_at(KEY, n, x))).path for n, x in enumerate("abc")]
    assert paths == ["/p" if letter in there else f"/{letter}" for letter in "abc"]
    assert set(hinted) == {KEY}


def test_messages_that_have_their_places_are_cut_to_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Limit `commit`, 500 entities: a page of a batch has 1,000 members, maybe all in a lane."""
    sizes: list[int] = []
    monkeypatch.setattr(adding.hints, "hint_later", lambda *args: None)
    monkeypatch.setattr(adding, "commit_of_puts", lambda client, puts: puts)
    monkeypatch.setattr(adding, "apply_together", lambda clients, puts: sizes.append(len(puts)))
    key, message = Lane("mail")("ada"), Message("/p", "q", b"{}")
    placed = [PlacedMessage(key, place, "c0ffee", message) for place in range(MAX_PAGE_MEMBERS)]

    adding.add_placed(Machine(), placed)  # type: ignore[arg-type]

    assert sum(sizes) == MAX_PAGE_MEMBERS
    assert max(sizes) <= limits.COMMIT.most


@pytest.mark.parametrize("fails", [False, True])
def test_a_sweep_that_fails_looks_at_the_same_keys_again(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """K5: so it notes how far it has come when the hints exist."""

    def enqueue_many(clients: object, hints: object) -> None:
        if fails:
            raise ConnectionError

    machine: Any = Machine()
    lane = lane_of()
    lane.task.enqueue_many = enqueue_many
    put_task(id_at(KEY, 7, "c0ffee"))
    monkeypatch.setattr(
        sweep, "_first_tasks", lambda *args: ([id_at(KEY, 7, "c0ffee")], "mail|bob")
    )
    monkeypatch.setattr(sweep, "note_oldest", lambda *args: None)
    if fails:
        with pytest.raises(ConnectionError):
            sweep._wake(machine, lane, NOON)
    else:
        assert sweep._wake(machine, lane, NOON) == 1
    assert machine.cached.get(sweep._position(machine, lane)) == (None if fails else b"mail|bob")


_SHARE = test_a_delivery_claims_its_share_of_what_is_due
_SERVED = test_a_hint_whose_key_is_served_ends
_WAITS = test_a_task_that_waits_is_behind_others_or_in_an_order_at_its_place
_GIVEN_UP = test_a_task_is_given_up_by_its_handler_as_long_as_that_may_fail
_BURIED = test_who_buries_a_task_holds_its_claim
BUGS = (
    Bug(*(claims, "_plan", "-(-len(due) // free)", "len(due) // free", _SHARE),
        {"ahead": "....", "order": False, "claimed": 0, "taken": "ab"}),
    Bug(*(claims, "_plan", "for task, until in waits if until is None]", "for task, _ in waits]",
          _SHARE), {"ahead": "+...", "order": False, "claimed": 0, "taken": "b"}),
    Bug(*(claims, "take", "state.next_hint not in (None, goes_on)", "False", _SERVED),
        {"owners": "", "next_hint": "h2", "goes_on": "h1", "is_mine": False}),
    Bug(*(claims, "take", "len(state.claims) >= lane.limit", "False", _SERVED),
        {"owners": "abc", "next_hint": None, "goes_on": "", "is_mine": False}),
    Bug(*(claims, "_claim", "state.head = plan.claim.tasks[0]", "pass"),
        test_the_first_task_of_a_claim_is_the_head_of_its_order, {"order": True}),
    Bug(*(lookups, "has_due_task", "lane.order or ", ""),
        test_a_key_has_a_task_that_is_due, {"waits": "+", "order": True, "is_due": True}),
    Bug(*(ends, "reschedule", "row.unknown_since or naive_utc(now_utc)", "naive_utc(now_utc)",
          _WAITS), {"order": False, "is_there": True}),
    Bug(*(ends, "reschedule", "return state is not None and not lane.order and", "return False and",
          _WAITS), {"order": False, "is_there": True}),
    Bug(*(ends, "reschedule", "arguments.keep(clients, task.body.encode())", "pass", _WAITS),
        {"order": True, "is_there": True}),
    Bug(*(ends, "give_up", " and task.failures < 2 * declared.max_attempts", "", _GIVEN_UP),
        {"failures": 6, "handler": "fails", "end": "buried"}),
    Bug(*(ends, "_keep_dead_task", "cancellation.note_death(handle, dead_id)", "pass", _BURIED),
        {"blocks": False, "is_mine": True}),
    Bug(*(ends, "_owned", "state is None or state.claim_of(holder.claim.owner) is None", "False",
          _BURIED), {"blocks": True, "is_mine": False}),
    Bug(*(adding, "add_placed", "ndb.put_multi(missing)", "pass"),
        test_messages_that_have_their_places_let_the_others_have_theirs, {"there": "b"},
        (AttributeError,)),
    Bug(*(adding, "add_placed", "if old is None]", "]"),
        test_messages_that_have_their_places_let_the_others_have_theirs, {"there": "b"}),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """K2, K4, K5, K7: each decision of a turn is for something."""
    bug.check_noticed(monkeypatch)
