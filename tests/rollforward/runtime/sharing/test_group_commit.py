"""Group commit: shared when there is something to share, at once when not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.runtime.sharing import group_commit as group_commit_module
from rollforward.runtime.sharing.group_commit import GroupCommit
from rollforward.testing.world import in_threads

TIMEOUT_S = 30


class Committer:
    """A commit that records its groups; the first one waits until it is released."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.is_under_way = threading.Event()
        self.let_go = threading.Event()
        self.raises: Exception | None = None

    def __call__(self, calls: Sequence[int]) -> list[Any]:
        self.groups.append(list(calls))
        if len(self.groups) == 1:
            self.is_under_way.set()
            assert self.let_go.wait(TIMEOUT_S)
        if self.raises:
            raise self.raises
        return [ValueError(f"{call}") if call < 0 else call * 10 for call in calls]


def group_commit(commit: Callable[[Sequence[int]], Any], **options: Any) -> GroupCommit[int, int]:
    sizes = {"max_calls": 100, "max_bytes": 1_000, "size": abs, "max_wait_s": TIMEOUT_S}
    return GroupCommit(commit, **{**sizes, **options})


def play(shared: GroupCommit[int, int], committer: Committer, calls: Sequence[int]) -> list[Any]:
    """Make the first call, and the others during it; return all answers."""
    answers: dict[int, Any] = {}

    def call(number: int) -> None:
        try:
            answers[number] = shared(number)
        except Exception as error:
            answers[number] = error

    def others() -> None:
        assert committer.is_under_way.wait(TIMEOUT_S)
        threads = [threading.Thread(target=call, args=[number]) for number in calls[1:]]
        for thread in threads:
            thread.start()
        while len(shared._waiting) < len(calls) - 1 and len(committer.groups) < 2:
            pass
        committer.let_go.set()
        for thread in threads:
            thread.join()

    in_threads(lambda: call(calls[0]), others)
    return [answers[number] for number in calls]


def test_calls_that_come_meanwhile_share_the_next_one() -> None:
    """One call for all that waited, in the order of their coming; each gets its own answer."""
    committer = Committer()

    answers = play(group_commit(committer), committer, [1, 2, 3, 4, 5])

    assert answers == [10, 20, 30, 40, 50]
    assert committer.groups[0] == [1]
    assert sorted(committer.groups[1]) == [2, 3, 4, 5]


def test_calls_that_come_while_the_leader_prepares_are_in_its_group() -> None:
    """The leader prepares once for its group, whose first call is its own."""
    prepared: list[int] = []
    groups: list[list[int]] = []

    def prepare(call: int) -> None:
        prepared.append(call)
        is_preparing.set()
        ends_s = time.monotonic() + TIMEOUT_S
        while len(shared._waiting) < 4 and time.monotonic() < ends_s:
            pass

    def commit(calls: Sequence[int]) -> list[int]:
        groups.append(list(calls))
        return [call * 10 for call in calls]

    is_preparing = threading.Event()
    shared = group_commit(commit, prepare=prepare)
    answers: list[int] = []

    def follow(call: int) -> None:
        assert is_preparing.wait(TIMEOUT_S)
        answers.append(shared(call))

    in_threads(lambda: answers.append(shared(1)), *[partial(follow, call) for call in (2, 3, 4)])

    assert sorted(answers) == [10, 20, 30, 40]
    assert prepared == [1]
    assert (len(groups), groups[0][0], sorted(groups[0])) == (1, 1, [1, 2, 3, 4])


def test_who_has_waited_too_long_prepares_nothing() -> None:
    """It takes all that wait at once: while it prepared, each of them would lead a group too."""
    committer, prepared = Committer(), list[int]()

    def let_go(call: int) -> None:
        prepared.append(call)

    shared = group_commit(committer, prepare=let_go, max_wait_s=0.05)
    answers: list[int] = []

    def follow() -> None:
        assert committer.is_under_way.wait(TIMEOUT_S)
        answers.append(shared(2))
        committer.let_go.set()

    in_threads(lambda: answers.append(shared(1)), follow)

    assert sorted(answers) == [10, 20]
    assert committer.groups == [[1], [2]]
    assert prepared == [1]


def test_a_group_is_bounded_in_number_and_size() -> None:
    """Surplus calls go with the next group; a call that is too large goes alone."""
    for options in ({"max_calls": 2}, {"max_bytes": 7}):
        committer = Committer()
        answers = play(group_commit(committer, **options), committer, [1, 2, 3, 4, 5])
        assert answers == [10, 20, 30, 40, 50]
        assert len(committer.groups) > 2
        for group in committer.groups:
            assert len(group) <= options.get("max_calls", 100)
            assert len(group) == 1 or sum(group) <= options.get("max_bytes", 100)


def test_an_error_is_its_own_callers() -> None:
    """An answer may be an error: it is raised for one caller and no other."""
    committer = Committer()

    good_a, bad, good = play(group_commit(committer), committer, [1, -2, 3])

    assert (good_a, good) == (10, 30)
    assert isinstance(bad, ValueError)


def test_a_commit_that_raises_raises_for_its_group_and_the_next_goes_on() -> None:
    """Nobody is left waiting."""
    committer = Committer()
    committer.raises = OSError("away")
    shared = group_commit(committer)

    answers = play(shared, committer, [1, 2, 3])
    assert all(isinstance(answer, OSError) for answer in answers)

    committer.raises = None
    assert shared(4) == 40


def test_nobody_waits_long_behind_a_commit_that_hangs() -> None:
    """After the longest wait a call leads the calls behind it."""
    committer = Committer()
    shared = group_commit(committer, max_wait_s=0.001)

    def hangs() -> None:
        assert shared(1) == 10

    def goes_ahead() -> None:
        assert committer.is_under_way.wait(TIMEOUT_S)
        assert shared(2) == 20
        committer.let_go.set()

    in_threads(hangs, goes_ahead)


def test_what_ends_the_thread_of_a_leader_leaves_its_followers_in_doubt() -> None:
    """They get an error of an unknown outcome, and each one of its own."""
    committer = Committer()

    def commit(calls: Sequence[int]) -> list[Any]:
        answers = committer(calls)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return answers

    shared = group_commit(commit)
    answers: dict[int, BaseException | int] = {}

    def call(number: int) -> None:
        try:
            answers[number] = shared(number)
        except BaseException as error:
            answers[number] = error

    def others() -> None:
        assert committer.is_under_way.wait(TIMEOUT_S)
        threads = [threading.Thread(target=call, args=[number]) for number in (2, 3, 4)]
        for queued, thread in enumerate(threads, 1):
            thread.start()
            while len(shared._waiting) < queued:
                pass
        committer.let_go.set()
        for thread in threads:
            thread.join()

    in_threads(lambda: call(1), others)

    assert answers.pop(1) == 10
    assert [type(answers[number]) for number in (2, 3, 4)] == [
        KeyboardInterrupt,
        rpc_errors.Cancelled,
        rpc_errors.Cancelled,
    ]
    assert answers[3] is not answers[4]
    assert (shared._leaders, shared._in_progress) == (0, [])
    assert shared(5) == 50


@pytest.mark.parametrize("place", ["_linger", "_lead_after_timeout"])
def test_a_thread_that_is_ended_before_it_commits_leaves_its_place(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a leader or in the queue: the next call leads at once."""
    committer = Committer()
    shared = group_commit(committer, max_wait_s=0.001 if place == "_lead_after_timeout" else 30)

    def end_thread(*_: object) -> None:
        raise KeyboardInterrupt

    def is_ended() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(shared, place, end_thread)
            with pytest.raises(KeyboardInterrupt):
                shared(2)
        committer.let_go.set()

    def ends_during_a_commit() -> None:
        assert committer.is_under_way.wait(TIMEOUT_S)
        is_ended()

    if place == "_linger":
        is_ended()
    else:
        in_threads(lambda: shared(1), ends_during_a_commit)

    assert (shared._leaders, shared._waiting) == (0, [])
    assert shared(3) == 30


def test_a_lone_call_waits_for_no_company() -> None:
    """Each goes alone and at once, also right after a group that was shared."""
    committer = Committer()
    shared = group_commit(committer)
    play(shared, committer, [1, 2, 3])

    assert [shared(4), shared(5)] == [40, 50]
    assert committer.groups[2:] == [[4], [5]]


def test_a_leader_waits_for_company_that_keeps_coming() -> None:
    """After a group that was shared the next one waits until it is full; after a lone one no more.

    Without that the sixth call would go alone: no commit is in progress when it comes.
    """
    committer = Committer()
    shared = group_commit(committer, max_calls=4, linger_s=TIMEOUT_S, gap_s=TIMEOUT_S)
    play(shared, committer, [1, 2, 3, 4, 5])

    in_threads(*[lambda call=call: shared(call) for call in (6, 7, 8, 9)])  # type: ignore[misc]

    assert [len(group) for group in committer.groups] == [1, 4, 4]
    alone = group_commit(committer, linger_s=TIMEOUT_S, gap_s=TIMEOUT_S)
    assert [alone(10), alone(11)] == [100, 110]


@pytest.mark.parametrize(("coming", "group", "yields"), [(3, 4, 4), (0, 1, 1), (9, 5, 4)])
def test_a_leader_lets_others_run_while_they_call(
    coming: int, group: int, yields: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a group that was shared: one call for each time that it yields, until none comes.

    Nor does it yield for more calls than a group has room for.
    """
    committer = Committer()
    shared = group_commit(committer, max_calls=5)
    play(shared, committer, [1, 2, 3])
    threads, count = list[threading.Thread](), 0

    def yield_to_one(seconds: float) -> None:
        nonlocal count
        assert seconds == 0
        count += 1
        if count <= coming:
            threads.append(threading.Thread(target=shared, args=[10 + count]))
            threads[-1].start()
            while len(shared._waiting) <= count:
                threads[-1].join(0.001)

    with monkeypatch.context() as patch:
        patch.setattr(group_commit_module.time, "sleep", yield_to_one)
        assert shared(10) == 100
    for thread in threads:
        thread.join(TIMEOUT_S)

    assert (len(committer.groups[2]), count) == (group, yields)


def test_a_leader_that_was_overtaken_makes_its_own_call() -> None:
    """A group takes no other leader along; both are answered, and the next call leads at once."""
    committer = Committer()
    committer.let_go.set()
    answers: list[int] = []

    class Overtaken(GroupCommit[int, int]):
        def _lead(self, own: Any) -> None:
            if own.call == 1:
                in_threads(lambda: answers.append(shared(2)))
            super()._lead(own)

    shared = Overtaken(committer, max_calls=9, max_bytes=9, size=abs, max_wait_s=0.001)

    assert shared(1) == 10
    assert answers == [20]
    assert committer.groups == [[2], [1]]
    assert shared._leaders == 0


@pytest.mark.parametrize("threads", [2, 16])
def test_nothing_is_lost_or_doubled_in_a_crowd(threads: int) -> None:
    """Every call is in exactly one group."""
    seen: list[int] = []

    def commit(calls: Sequence[int]) -> list[int]:
        seen.extend(calls)
        return [call * 10 for call in calls]

    shared = group_commit(commit, max_wait_s=0.0005)

    def caller(number: int) -> None:
        for i in range(50):
            assert shared(number * 100 + i) == (number * 100 + i) * 10

    in_threads(*[lambda n=n: caller(n) for n in range(threads)])

    assert sorted(seen) == sorted(n * 100 + i for n in range(threads) for i in range(50))


def play_in_order(
    shared: GroupCommit[int, int], committer: Committer, calls: Sequence[int]
) -> list[int]:
    """Make the first call, and the others during it, one after the other; return all answers."""
    answers: dict[int, int] = {}

    def call(number: int) -> None:
        answers[number] = shared(number)

    def others() -> None:
        assert committer.is_under_way.wait(TIMEOUT_S)
        threads = []
        for queued, number in enumerate(calls[1:], 1):
            threads.append(threading.Thread(target=call, args=[number]))
            threads[-1].start()
            while len(shared._waiting) < queued:
                pass
        committer.let_go.set()
        for thread in threads:
            thread.join()

    in_threads(lambda: call(calls[0]), others)
    return [answers[number] for number in calls]


def test_calls_that_touch_a_common_row_share_no_commit_and_keep_their_order() -> None:
    """Here a row is the last digit: 11 and 21 go one after the other, and 15 stays behind 22."""
    committer = Committer()
    shared = group_commit(committer, rows=lambda call: {call % 10, *([1] if call == 22 else [])})

    answers = play_in_order(shared, committer, [9, 11, 12, 21, 22, 31, 15])

    assert answers == [90, 110, 120, 210, 220, 310, 150]
    assert committer.groups == [[9], [11, 12, 15], [21], [22], [31]]


def test_two_groups_in_progress_touch_no_common_row() -> None:
    """The second leader begins at once, unless its row is that of the first one's group."""
    committer = Committer()
    shared = group_commit(committer, rows=lambda call: {call % 10}, max_leaders=2)

    def others() -> None:
        assert committer.is_under_way.wait(TIMEOUT_S)
        late = threading.Thread(target=lambda: shared(21))
        late.start()
        while not shared._waiting:
            pass
        assert shared(12) == 120
        assert committer.groups == [[11], [12]]
        committer.let_go.set()
        late.join()

    in_threads(lambda: shared(11), others)

    assert committer.groups == [[11], [12], [21]]
    assert (shared._leaders, shared._in_progress) == (0, [])
