"""Fork-join queues in every interleaving of their steps: the real code, and the talk's.

Two writers insert an item each under one key, each in a process of its own. Every task is
delivered. Each search comes to its end: no state is left out. `make test` searches beside a sweep
with one writer where two make hundreds of thousands of states; `make soak` takes two.

The fold mutex is taken out, but for one test: it keeps folds of a key from contending, and no
invariant may rest on it. Without it joiners come in at any time, which is all that they can do with
it, and more.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from google.cloud import ndb

from rollforward.fork_join import Batch, ForkJoin, fork_join
from rollforward.fork_join import fold as fork_join_fold
from rollforward.fork_join import queue as fork_join_queue
from rollforward.fork_join.batching import epochs
from rollforward.fork_join.entities import PackId, pack_key
from rollforward.runtime import Clients, NoCache
from rollforward.runtime.messages import Message
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.model_checking.model_checker import (
    CRASH,
    DUPLICATE,
    FLUSH,
    REPLY_LOST,
    TIME_OUT,
    UNHEARD,
    End,
    Search,
)
from tests.infra.model_checking.stepwise import NOON, LocalState, Process, stepwise
from tests.infra.runs import sampling
from tests.rollforward.fork_join.searches import talk_code
from tests.rollforward.fork_join.tally_queue import Mark

NONE = ""
FAULTS = [NONE, CRASH, FLUSH, TIME_OUT, DUPLICATE, UNHEARD, REPLY_LOST]
# After these some work may have no joiner to come but the one that the sweep sends.
NEEDS_SWEEP = {CRASH, UNHEARD}
LATE = datetime.timedelta(seconds=20)
LATER = datetime.timedelta(minutes=5)


class Heap(ndb.Model):
    """The folded items and epochs with their counts, without their order."""

    labels = ndb.JsonProperty(default=[])
    epochs = ndb.JsonProperty(default=[])


def heap(clients: Clients, batch: Batch, items: Sequence[Mark]) -> None:
    row = Heap.get_by_id(batch.key) or Heap(id=batch.key)
    row.labels = sorted([*row.labels, *(item.label for item in items)])
    row.epochs = sorted({*row.epochs, batch.epoch})
    row.put()


WAITING = fork_join("heaps", queue="fork-join", period_s=1.0)(heap)
AT_ONCE = fork_join("heaps-at-once", queue="fork-join", period_s=0)(heap)
# Time stands still in a search, so a queue without a period goes through the same states:
# `make test` searches them with two kinds of fault only.
EVERY = [(WAITING, fault) for fault in FAULTS] + [
    (AT_ONCE, fault) for fault in (FAULTS if IS_EXHAUSTIVE else [NONE, CRASH])
]


@pytest.fixture(autouse=True)
def in_steps() -> Iterator[None]:
    with stepwise():
        yield


def take_mutex_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let joiners of a key not wait for each other: nothing may depend on it."""
    turn = SimpleNamespace(show_progress=lambda: None)
    monkeypatch.setattr(
        fork_join_queue, "advisory_lock", lambda *args, **options: contextlib.nullcontext(turn)
    )


@pytest.fixture
def no_mutex(monkeypatch: pytest.MonkeyPatch) -> None:
    take_mutex_away(monkeypatch)


# The search


def inserting(queue: ForkJoin[Mark], label: str, **options: Any) -> Process:
    return Process(label, lambda clients: queue.insert(clients, "k", Mark(label)), **options)


def searched(
    queue: ForkJoin[Mark], fault: str, *others: Process, writers: Sequence[Process] = ()
) -> Search:
    some = writers or writers_of("ab", queue)
    return Search([*some, *others], functools.partial(deliver, queue), fault=fault)


def writers_of(labels: str, queue: ForkJoin[Mark] = WAITING) -> list[Process]:
    """Return a writer for each label. They are alike, so the first may always begin first."""
    return [
        inserting(queue, label, follows=previous)
        for label, previous in zip(labels, ["", *labels], strict=False)
    ]


def deliver(queue: ForkJoin[Mark], clients: Any, task: Message) -> None:
    assert task.path == queue.join_task.path
    queue.join_task.work(clients, queue.join_task.read(task.body))


def check(search: Search, end: End, queue: ForkJoin[Mark]) -> None:
    """D1 to D5, at an end and after one more sweep."""
    try:
        check_answers(search, end)
        check_folded(end)
        if search.fault not in NEEDS_SWEEP:
            assert not packs(end), "left to the sweep"
        check_healed(search.heal(end, [Process("last sweep", queue.sweep, NOON + LATER)]))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{search.story(end)}") from error


def check_answers(search: Search, end: End) -> None:
    """D6: each refusal or death has a reason."""
    ends = {call.what for call in end.answers.values()}
    may_be = {CRASH: {"died"}, UNHEARD: {"raised"}, REPLY_LOST: {"raised"}}
    assert ends <= {"returned"} | may_be.get(search.fault, set())


def check_folded(end: End) -> None:
    """D4: no item is folded twice, and folded items are gone."""
    counts = folded(end)
    waiting = Counter(label for _, labels in packs(end) for label in labels)
    assert not counts or max((counts + waiting).values()) == 1, (counts, waiting)


def check_healed(end: End) -> None:
    """D1, D3, D5: all that was accepted is folded, once; nothing is left, nor is a lock open."""
    answers = {name: end.answers[name] for name in "ab" if name in end.answers}
    accepted = {name for name, answer in answers.items() if answer.what == "returned"}
    assert accepted <= folded(end).keys(), f"{accepted} were accepted, {folded(end)} is folded"
    check_folded(end)
    assert not packs(end)
    for key, value in end.held.items():
        if key.startswith("fork-join:lock:") and key.rpartition(":")[2] in folded_epochs(end):
            assert int(value) % epochs.ITEM < epochs.OPEN, f"{key} is open"


def rows(end: End, kind: str) -> dict[Any, dict[str, Any]]:
    return {key: values for key, (_, values, _) in end.rows.facts.items() if key.kind() == kind}


def packs(end: End) -> list[tuple[str, list[str]]]:
    """Return the unfolded packs: their keys and labels."""
    packs_left = rows(end, "WorkPack").items()
    return [
        (key.id(), [item["label"] for item in json.loads(row["items"])]) for key, row in packs_left
    ]


def folded(end: End) -> Counter[str]:
    return Counter(label for row in rows(end, "Heap").values() for label in row["labels"])


def folded_epochs(end: End) -> set[str]:
    return {epoch for row in rows(end, "Heap").values() for epoch in row["epochs"]}


def walk(search: Search, queue: ForkJoin[Mark], at_least: int) -> None:
    """Check every end of a search."""
    ends = 0
    for end in search.ends():
        check(search, end, queue)
        ends += 1
    assert ends
    assert search.states > at_least, "the search is too small to mean anything"


# Our queue


@pytest.mark.one_of("interleavings of two writers", 3)
@pytest.mark.parametrize(("queue", "fault"), EVERY, ids=lambda each: getattr(each, "name", each))
@pytest.mark.usefixtures("no_mutex")
def test_every_interleaving_folds_each_item_once(queue: ForkJoin[Mark], fault: str) -> None:
    """D1, D2, D3, D4, D5: with one fault of a kind at any step, or none; then the sweep.

    But after a death or a call that failed, there is nothing left for it to do.
    """
    walk(searched(queue, fault), queue, at_least=3_000)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("labels", "at_least"), [("ab", 300_000) if IS_EXHAUSTIVE else ("a", 500)])
@pytest.mark.usefixtures("no_mutex")
def test_a_sweep_at_any_moment_folds_nothing_twice(labels: str, at_least: int) -> None:
    """D1, D4: also a sweep whose clock is ahead, while writers are still inside."""
    sweep = Process("sweep", WAITING.sweep, NOON + LATE)

    walk(searched(WAITING, NONE, sweep, writers=writers_of(labels)), WAITING, at_least=at_least)


BESIDE_A_SWEEP = [(NONE, "ab", 30_000), (CRASH, "a", 1_500), (TIME_OUT, "a", 1_000)]
if IS_EXHAUSTIVE:
    BESIDE_A_SWEEP += [(CRASH, "ab", 80_000), (TIME_OUT, "ab", 80_000)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "labels", "at_least"), BESIDE_A_SWEEP)
@pytest.mark.usefixtures("no_mutex")
def test_a_sweep_beside_the_joiners_folds_nothing_twice(
    fault: str, labels: str, at_least: int
) -> None:
    """D1, D2, D3, D4, D5: a sweep while joiners are at work, and a fault at any step."""
    sweep = Process("sweep", WAITING.sweep, NOON + LATE, is_last=len(labels) > 1)

    walk(searched(WAITING, fault, sweep, writers=writers_of(labels)), WAITING, at_least=at_least)


@pytest.mark.parametrize("fault", [NONE, CRASH, TIME_OUT])
def test_the_fold_mutex_is_given_back(fault: str) -> None:
    """D5: only a joiner that died keeps it, and it expires."""
    search = searched(WAITING, fault)

    for end in search.ends():
        check_answers(search, end)
        check_folded(end)
        is_held = any(key.startswith("fork-join:fold-mutex:") for key in end.held)
        assert not is_held or (fault == CRASH and end.is_broken), search.story(end)
    assert search.states > 3_000


@pytest.mark.parametrize("fault", [NONE, CRASH, *([FLUSH] if IS_EXHAUSTIVE else [])])
@pytest.mark.usefixtures("no_mutex")
def test_writers_whose_clocks_differ_lose_nothing(fault: str) -> None:
    """D1, D2, D3, D4, D5: one of them takes the other's epoch for forgotten."""
    writers = [inserting(WAITING, "a"), inserting(WAITING, "b", at=NOON + LATE)]

    walk(searched(WAITING, fault, writers=writers), WAITING, at_least=3_000)


@pytest.mark.parametrize("fault", [NONE, CRASH, DUPLICATE, REPLY_LOST])
@pytest.mark.usefixtures("no_mutex")
def test_without_memcached_nothing_is_lost(fault: str) -> None:
    """D2: each writer has a batch of its own."""

    def without(clients: Any) -> Any:
        clients.cache = NoCache()
        return clients

    def insert(label: str, clients: Any) -> Any:
        return WAITING.insert(without(clients), "k", Mark(label))

    writers = [Process(label, functools.partial(insert, label)) for label in "ab"]
    search = Search(
        writers, lambda clients, task: deliver(WAITING, without(clients), task), fault=fault
    )

    walk(search, WAITING, at_least=15)


# A call that fails brings second tries and with them batches: too many states for a test. After a
# flush there are fewer, but enough to leave them to `make soak`.
@pytest.mark.parametrize("fault", [NONE, CRASH, TIME_OUT, *([FLUSH] if IS_EXHAUSTIVE else [])])
@pytest.mark.usefixtures("no_mutex")
def test_a_request_made_twice_at_once_counts_once(fault: str) -> None:
    """D1, D6: a caller that lost patience or its server makes the same request again."""

    def insert(clients: Any) -> Any:
        return WAITING.insert(clients, "k", Mark("x"), idempotency_key="r")

    writers = [Process("a", insert), Process("b", insert, follows="a")]
    search = searched(WAITING, fault, writers=writers)

    for end in search.ends():
        check_answers(search, end)
        check_folded(end)
        healed = search.heal(end, [Process("last sweep", WAITING.sweep, NOON + LATER)])
        answers = [call.arguments[0] for call in end.answers.values() if call.what == "returned"]
        assert folded(healed) == Counter({"x": 1}), search.story(end)
        assert len({answer.pack for answer in answers}) == 1, search.story(end)
        assert not packs(healed)
    assert search.states > 1_000


# The talk's queue


def talk_ends(fault: str, *, skew_s: float = 0) -> set[str]:
    """Return what becomes of accepted items by the talk's code: fine, lost, doubled."""
    skewed = NOON + datetime.timedelta(seconds=skew_s)
    writers = [
        Process("a", lambda clients: talk_code.insert(clients, "sum", 1)),
        Process("b", lambda clients: talk_code.insert(clients, "sum", 10), skewed),
    ]
    search = Search(writers, talk_code.deliver, fault=fault)
    return {fate for end in search.ends() for fate in talk_fates(end)}


def talk_fates(end: End) -> set[str]:
    (total,) = [row["total"] for row in rows(end, "TalkSum").values()] or [0]
    fates = {"fine"}
    for name, delta in (("a", 1), ("b", 10)):
        times = total // delta % 10
        call = end.answers[name]
        is_accepted = call.what == "returned" and call.arguments == (True,)
        if times > 1:
            fates.add("doubled")
        if times == 0 and is_accepted:
            fates.add("lost")
    return fates


@pytest.mark.parametrize(
    ("fault", "fates"),
    [
        (NONE, {"fine"}),
        (CRASH, {"fine", "lost", "doubled"}),
        (FLUSH, {"fine", "lost"}),
        (TIME_OUT, {"fine", "lost"}),
        (DUPLICATE, {"fine", "lost", "doubled"}),
    ],
)
def test_the_talks_code_loses_and_doubles(fault: str, fates: set[str]) -> None:
    """One fault makes the talk's code lose and double items; without a fault it is exact.

    Lost: a redelivered joiner closes the lock twice, and so does not wait for writers. Without
    memcached, or after a time-out, it does not wait either, and the writer's task has run by then.
    Doubled: a second delivery finds items that the first one has added and not yet deleted.
    """
    assert talk_ends(fault) == fates


def test_the_talks_code_doubles_across_half_a_minute() -> None:
    """Without any fault: a batch that is open across a change of names gets two joiners."""
    assert talk_ends(NONE, skew_s=30) == {"fine", "doubled"}


# The search bites


def folded_as_in_the_talk(clients: Any, queue: Any, part: Sequence[PackId], folded: Any) -> None:
    """Read first, then add in a transaction, then delete: what must not be done."""
    keys = [pack_key(pack.text) for pack in part]
    packs = [pack for pack in ndb.get_multi(keys) if pack is not None]
    items = [item for pack in packs for item in queue.read(pack.items)]
    if items:
        batch = Batch(packs[0].batch_key, part[0].epoch, NOON)
        fork_join_fold.transact(lambda: queue.join(clients, batch, items))
    for pack in packs:
        pack.key.delete()


@pytest.mark.parametrize("fault", [CRASH, DUPLICATE, REPLY_LOST])
@pytest.mark.usefixtures("no_mutex")
def test_the_search_finds_a_fold_that_deletes_afterwards(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """D4 fails if a fold does not read and delete its items in its transaction."""
    monkeypatch.setattr(fork_join_fold, "_fold", folded_as_in_the_talk)

    with pytest.raises(AssertionError, match="Counter"):
        walk(searched(WAITING, fault), WAITING, at_least=0)


@pytest.mark.parametrize("fault", [FLUSH, TIME_OUT])
@pytest.mark.usefixtures("no_mutex")
def test_the_search_finds_stragglers_without_a_task(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """D3 rests on the sweep alone if a writer that was missed does not say so."""
    monkeypatch.setattr(epochs.Epochs, "leave", lambda self, clients, entry: False)

    with pytest.raises(AssertionError, match="left to the sweep"):
        walk(searched(WAITING, fault), WAITING, at_least=0)


@pytest.mark.parametrize("fault", sorted(NEEDS_SWEEP))
@pytest.mark.usefixtures("no_mutex")
def test_the_search_finds_what_is_stranded_without_a_sweep(fault: str) -> None:
    """D3 fails after a death or a failed call without a sweep."""
    with (
        mock.patch.object(WAITING, "sweep", return_value=None),
        pytest.raises(AssertionError, match="accepted"),
    ):
        walk(searched(WAITING, fault), WAITING, at_least=0)


@sampling.long
@pytest.mark.usefixtures("no_mutex")
def test_what_is_left_out_leads_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local states with the same future are one to the search; they end alike.

    With a crash, since then tasks are retried. `make soak` takes two writers of ours, too.
    """
    writers_of_ours = writers_of("ab" if IS_EXHAUSTIVE else "a")

    def talks() -> set[Any]:
        writers = [
            Process("a", lambda clients: talk_code.insert(clients, "sum", 1)),
            Process("b", lambda clients: talk_code.insert(clients, "sum", 10)),
        ]
        return {outcome(end) for end in Search(writers, talk_code.deliver, fault=CRASH).ends()}

    def ours() -> set[Any]:
        return {outcome(end) for end in searched(WAITING, CRASH, writers=writers_of_ours).ends()}

    together = talks(), ours()
    monkeypatch.setattr(LocalState, "future", property(lambda local: local.number))

    assert (talks(), ours()) == together


def outcome(end: End) -> Any:
    """Return the content of Datastore, and the ends of the writers."""
    return end.rows.state(), frozenset((name, call.what) for name, call in end.answers.items())
