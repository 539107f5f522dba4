"""Turns and places: what a process has little of is shared out among callers."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest

from rollforward.flask.live import ASKED_PER_S, FAST_MS, SLOW_MS
from rollforward.flask.shares import MAX_ENDING, FairRate, OpenStreams
from tests.infra.mutation.lines import Bug

FAST_S, SLOW_S = FAST_MS / 1000, SLOW_MS / 1000


def play(callers: list[str], seconds: int = 60) -> tuple[Counter[int], dict[str, list[float]]]:
    """Return how many questions came in each second, and the last waits of each caller's pages.

    All pages are opened in the same second, and each asks again when it may.
    """
    pace, asked = FairRate(ASKED_PER_S, SLOW_S), Counter[int]()
    waits = [0.0] * len(callers)
    due = [(page / len(callers), page) for page in range(len(callers))]
    while due[0][0] < seconds:
        at, page = heapq.heappop(due)
        asked[int(at)] += 1
        waits[page] = pace.wait_s(at, callers[page], FAST_S)
        heapq.heappush(due, (at + waits[page], page))
    last: dict[str, list[float]] = {caller: [] for caller in callers}
    for caller, wait in zip(callers, waits, strict=True):
        last[caller].append(wait)
    return asked, last


def test_the_more_pages_ask_the_less_often_each_may() -> None:
    """Until the process is asked as often as it can take, and no more, whoever asks."""
    each_s = 100 / ASKED_PER_S
    for callers in (["ada"] * 100, [f"caller {n}" for n in range(100)]):
        asked, waits = play(callers)

        told = [wait for each in waits.values() for wait in each]
        assert 0.9 * each_s < min(told) <= max(told) < 1.1 * each_s
        assert max(asked[second] for second in range(15, 60)) <= ASKED_PER_S + 1

    assert max(play(["ada", "bob", "cleo"])[1]["ada"]) < 1.2 * FAST_S
    assert max(play(["ada"] * 2_000, 40)[1]["ada"]) == SLOW_S
    assert max(play([f"caller {n}" for n in range(2_000)], 40)[1]["caller 0"]) <= SLOW_S


def test_a_caller_with_many_pages_slows_only_its_own() -> None:
    """The others ask as often as if it had one."""
    asked, waits = play([*["ada"] * 100, "bob", "cleo"])

    assert max(waits["bob"] + waits["cleo"]) <= FAST_S + 3 / ASKED_PER_S
    assert min(waits["ada"]) > 0.9 * SLOW_S
    # What ada's pages were told before the others came still holds.
    assert max(asked[second] for second in range(20, 60)) <= ASKED_PER_S + 2 / FAST_S


def test_who_asks_without_waiting_keeps_nobody_else_waiting() -> None:
    """Nor does what is remembered of it grow."""
    pace = FairRate(ASKED_PER_S, SLOW_S)
    told = list[float]()
    for step in range(20_000):
        now = step / 1000
        pace.wait_s(now, "mallory", FAST_S)
        if step % 500 == 0:
            told.append(pace.wait_s(now, "bob", FAST_S))

    assert max(told) <= FAST_S + 2 / ASKED_PER_S
    assert len(pace._rounds) <= SLOW_S * ASKED_PER_S + 1
    for _ in range(1000):
        pace.wait_s(1e6, "ada", FAST_S)
    assert set(pace._last) == {"ada"}


def test_who_is_alone_has_its_turn_at_once() -> None:
    """As often as it comes back in time."""
    pace = FairRate(ASKED_PER_S, SLOW_S)

    assert [pace.wait_s(at, "ada") for at in (5.0, 5.2, 9.0)] == [0.0, 0.0, 0.0]
    assert pace.wait_s(9.0, "ada") == pytest.approx(1 / ASKED_PER_S)


def test_places_end_up_shared_out_evenly() -> None:
    """Whatever a caller holds, others come to as much, and it keeps no fewer than they have."""
    streams, held = OpenStreams(8), Counter[str]()
    open_places = [place for _ in range(9) if (place := streams.enter("mallory"))]
    for caller in [*["ada"] * 6, *["bob"] * 6, "mallory", "mallory"]:
        place = streams.enter(caller)
        open_places += [place] if place else []
        for ending in [place for place in open_places if place.is_ending]:
            open_places.remove(ending)
            streams.leave(ending)
    held.update(place.caller for place in open_places)

    assert held.total() == 8
    assert sorted(held.values()) == [2, 3, 3]


def test_no_place_goes_to_and_fro() -> None:
    """Who has one fewer than the caller with the most takes none: the two would take turns."""
    streams = OpenStreams(3)
    places = [streams.enter(caller) for caller in ("ada", "ada", "bob")]

    assert streams.enter("bob") is None
    assert not any(place is None or place.is_ending for place in places)


def test_streams_that_are_ending_keep_few_threads() -> None:
    """A caller that does not take what is sent to it cannot make others' streams pile up."""
    streams = OpenStreams(4)
    for _ in range(4):
        streams.enter("mallory")

    entered = [streams.enter(caller) for caller in ("ada", "bob", "cleo", "dora")]

    assert [place is not None for place in entered] == [True] * MAX_ENDING + [False] * 2
    assert OpenStreams(0).enter("ada") is None


def test_a_stream_that_is_ending_is_no_share_of_its_caller() -> None:
    """It has given its place up: nobody takes another one for it."""
    streams = OpenStreams(2)
    places = [streams.enter(caller) for caller in ("ada", "ada", "bob")]

    assert [place is not None and place.is_ending for place in places] == [True, False, False]
    assert streams.enter("cleo") is None


def test_a_process_that_ends_opens_no_stream() -> None:
    """Although there are places."""
    streams = OpenStreams(2)
    assert streams.enter("ada") is not None
    streams.close()

    assert streams.enter("bob") is None


@pytest.mark.parametrize(
    "bug",
    [
        Bug(
            *(OpenStreams, "_evict_for", " if not place.is_ending", ""),
            test_a_stream_that_is_ending_is_no_share_of_its_caller,
        ),
        Bug(
            *(OpenStreams, "enter", "self.is_closing or ", ""),
            test_a_process_that_ends_opens_no_stream,
        ),
        Bug(
            *(OpenStreams, "_evict_for", "held[caller] + 2", "held[caller] + 1"),
            test_no_place_goes_to_and_fro,
        ),
        Bug(
            *(OpenStreams, "_evict_for", "or len(self._places) >= self.limit + MAX_ENDING", ""),
            test_streams_that_are_ending_keep_few_threads,
        ),
    ],
    ids=lambda bug: bug.id,
)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """Each guard of a share is for something."""
    bug.check_noticed(monkeypatch)
