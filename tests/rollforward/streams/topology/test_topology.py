"""Computations that are attached, replaced and detached while records flow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from rollforward.streams import Pipeline, PushSource, StreamTest
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.graph.plan import MAX_HISTORY, Change, history_of, with_change
from rollforward.streams.model.errors import TopologyError, UnknownStreamError, UnreadableStateError
from rollforward.streams.storage.remote_calls import ChangedError, Commit, Steps
from rollforward.streams.storage.schema import CHUNK, INTERVAL, SLAB, Head
from rollforward.streams.topology.changes import attach, detach, replace
from tests.rollforward.streams.planted import changes, protocol
from tests.rollforward.streams.scenarios.topology_pipeline import (
    SOURCE,
    Second,
    Tally,
    Tally2,
    Third,
    Told,
    desk_of,
    detached,
    parts,
    push,
)
from tests.rollforward.streams.simulator.driver import Came, Desk, is_batch


def test_a_version_goes_on_with_the_states_of_the_one_before() -> None:
    """G15: each record counts once, by one of them; a state is read when it is used."""
    desk = desk_of(Tally2, intervals=1)
    push(desk, 1)
    desk.run()
    push(desk, 2)
    desk.do(replace(desk.environment, "tally", 2))
    assert parts(desk).parts["tally"].phase == "replacing"
    push(desk, 3)
    desk.run()

    assert desk.state("tally", "a") == {"kept": 3}
    assert desk.state("told", "a") == {"told": [[1, 1], [2, 2], [3, 2]]}
    topology = parts(desk)
    assert (topology.parts["tally"].version, topology.parts["tally"].phase) == (2, "running")
    assert [(change.action, change.previous_version) for change in topology.changes] == [
        ("replaced", 1)
    ]
    desk.do(replace(desk.environment, "tally", 2))
    assert not parts(desk).is_changing


def works_on_while_it_is_replaced(desk: Desk) -> None:
    push(desk, 1)
    worker = desk.worker("tally")
    call = desk.until(worker, Commit, of=2)
    assert is_batch(call)
    desk.do(replace(desk.environment, "tally", 2))
    push(desk, 2)
    desk.wait(1)
    desk.finish(worker, call)
    desk.run()
    assert desk.state("told", "a") == {"told": [[1, 1], [2, 2]]}


def sends_to_one_that_has_left(desk: Desk) -> None:
    push(desk, 1)
    worker = desk.worker("tally")
    call = desk.until(worker, Commit, of=2)
    desk.do(detach(desk.environment, "told", discard=True))
    for _ in range(3):
        desk.do(tick(desk.environment))
    desk.finish(worker, call)
    desk.run()
    change = detached(desk)
    assert (change.records, change.keys) == (1, 0)
    assert not desk.rows(CHUNK)


def pushes_to_one_that_has_left(desk: Desk) -> None:
    desk.do(attach(desk.environment, "third", None))
    environment = desk.environment
    records = [inbound_record(environment, "others", {"k": "a"}, 1, "1")]
    pushed = ingest(environment, IngestRequest("others", "", records, 1))
    call = desk.until(pushed, Commit)
    desk.do(detach(desk.environment, "third", discard=True))
    for _ in range(3):
        desk.do(tick(desk.environment))
    desk.finish(pushed, call)
    desk.run()
    change = detached(desk)
    assert change.records == 1
    assert not desk.rows(CHUNK)


def is_attached_again(desk: Desk) -> None:
    for at in (1, 2, 3):
        desk.do(attach(desk.environment, "second", None))
        push(desk, at)
        desk.run()
        assert desk.state("second", "a") == {"told": [[at, 1]], "at": [at]}
        desk.do(detach(desk.environment, "second", discard=True))
        desk.run()


def is_attached_while_a_process_is_silent(desk: Desk) -> None:
    desk.push(Came("1", "a", 9), process="b", watermark=9)
    desk.push(Came("2", "a", 9), process="a", watermark=9)
    desk.run()
    desk.wait(35)
    desk.push(process="a", watermark=9)
    desk.run()
    desk.wait(35)
    desk.push(Came("3", "a", 99), process="a", watermark=99)
    desk.do(attach(desk.environment, "second", None))
    assert desk.head.inputs["second"] > 9
    desk.push(Came("4", "a", 20), process="b", watermark=20)
    desk.run()
    assert sorted(desk.state("second", "a")["at"]) == [20, 99]
    assert "bad" not in desk.state("second", "a")


BROKEN = [
    (works_on_while_it_is_replaced, changes.workers_keep_their_version),
    (sends_to_one_that_has_left, changes.senders_are_not_waited_for),
    (pushes_to_one_that_has_left, changes.senders_are_not_waited_for),
    (is_attached_again, changes.births_repeat),
    (is_attached_while_a_process_is_silent, changes.silent_ones_stay),
]


def desk_without_sweep(patch: pytest.MonkeyPatch, processes: tuple[str, ...]) -> Desk:
    """Return a desk without a sweep, which would replace lost wake-ups."""
    source = PushSource("in", disorder=timedelta(0), processes=processes)
    desk = Desk(
        Pipeline(
            "live", Tally, Told, standby=[Tally2, Second, Third], sources=[source], intervals=1
        )
    )
    desk.simulation.max_steps = 1_000
    protocol.no_sweep(desk, patch)  # type: ignore[arg-type]
    return desk


@pytest.mark.parametrize(("play", "variant"), BROKEN, ids=lambda part: part.__name__)
def test_a_change_beside_a_worker_or_a_sender_under_way(
    play: Any, variant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D, G15: each record counts once, for who should get it; and a broken change is noticed."""
    processes = ("a", "b") if play is is_attached_while_a_process_is_silent else ("",)
    play(desk_without_sweep(monkeypatch, processes))
    desk = desk_without_sweep(monkeypatch, processes)
    variant(desk, monkeypatch)
    with pytest.raises(AssertionError):
        play(desk)


def test_a_version_is_tried_in_a_test() -> None:
    """A `StreamTest` continues with another version, and its states and timers."""
    test = StreamTest(Pipeline("live", Tally, Told, standby=[Tally2], sources=[SOURCE]))
    test.push("in", {"k": "a"}, timestamp_ms=1)
    test.replace("tally", 2)
    assert test.state("tally", "a") == {"kept": 1}
    test.push("in", {"k": "a"}, timestamp_ms=2)
    test.advance_watermark(200)
    assert test.state("tally", "a") == {"kept": 2, "fired": [2, False]}
    with pytest.raises(UnknownStreamError):
        test.replace("tally", 3)


class Deaf(Tally2):
    name = "tally"
    version = 3
    reads = ()


class Clumsy(Tally2):
    name = "tally"
    version = 4

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"kept": state["cuont"]}


class Forgetful(Tally2):
    name = "tally"
    version = 5

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        state["kept"] = state.pop("count")  # And no `return`.
        return None  # type: ignore[return-value]


UNREADING = (
    (3, "`reads`"), (4, "KeyError: 'cuont'"), (5, "`upgrade` of tally must return a dict, got a N"),
)  # fmt: skip


def test_a_version_that_cannot_read_what_is_stored_is_refused() -> None:
    """G15: and nothing changes."""
    desk = desk_of(Deaf, Clumsy, Forgetful, intervals=1)
    push(desk, 1)
    desk.run()
    head = desk.head
    for version, message in UNREADING:
        with pytest.raises(UnreadableStateError, match=message):
            desk.do(replace(desk.environment, "tally", version))
    assert desk.head == head


def test_a_version_that_cannot_read_a_state_is_refused_in_a_test_as_well() -> None:
    """A `StreamTest` refuses the version as the services do, and continues with the other one."""
    standby = [Deaf, Clumsy, Forgetful]
    test = StreamTest(Pipeline("live", Tally, Told, standby=standby, sources=[SOURCE]))
    test.push("in", {"k": "a"}, timestamp_ms=1)
    for version, message in UNREADING:
        with pytest.raises(UnreadableStateError, match=message):
            test.replace("tally", version)
    test.push("in", {"k": "a"}, timestamp_ms=2)
    assert test.state("tally", "a")["count"] == 2


def test_a_test_refuses_what_is_for_computations_on_standby() -> None:
    """As the services do: who pushes there would test nothing."""
    test = StreamTest(Pipeline("live", Tally, Told, standby=[Third], sources=[SOURCE]))

    with pytest.raises(UnknownStreamError, match="no computation reads others as a source"):
        test.push("others", {"key": "b"}, 1)
    with pytest.raises(UnknownStreamError, match="no computation reads others as a source"):
        test.advance_watermark(1, "others")
    with pytest.raises(UnknownStreamError, match="third does not run"):
        test.replace("third", version=1)

    assert (test.keys("tally"), test.watermark("tally")) == ([], 0)


def test_what_is_attached_gets_what_is_sent_from_then_on_and_none_from_before() -> None:
    """J, G15: and its watermark begins at the watermark of its inputs."""
    desk = desk_of(Second, Third, intervals=1)
    push(desk, 1, 5)
    desk.run()
    desk.do(attach(desk.environment, "second", None))
    assert desk.head.inputs["second"] == 5
    push(desk, 7)
    desk.run()

    assert desk.state("second", "a") == {"at": [7], "told": [[3, 1]]}
    assert desk.head.inputs["second"] == 7
    assert not parts(desk).is_changing


def test_a_stream_begins_with_the_first_that_reads_it() -> None:
    """G15: who pushes to it before is refused, and loses nothing."""
    desk = desk_of(Third, intervals=1)
    push(desk, 1)
    desk.run()
    record = Came("o", "b", 8)
    with pytest.raises(UnknownStreamError, match="no computation reads others"):
        desk.push(record, stream="others", watermark=8)
    desk.do(attach(desk.environment, "third", None))
    desk.push(record, stream="others", watermark=8)
    push(desk, 9)
    desk.run()
    assert desk.state("third", "b") == {"at": [8]}
    assert desk.head.inputs["third"] == 8

    desk.do(detach(desk.environment, "third", discard=True))
    desk.run()
    with pytest.raises(UnknownStreamError, match="no computation reads others"):
        desk.push(Came("p", "b", 9), stream="others")


def test_what_is_detached_works_on_what_it_has_and_its_timers_fire() -> None:
    """G15: then its rows are deleted, and the watermark of its readers advances."""
    desk = desk_of(Second, intervals=2)
    desk.do(attach(desk.environment, "second", None))
    push(desk, 1)
    desk.run()
    push(desk, 2)
    desk.do(detach(desk.environment, "told", discard=False))
    assert parts(desk).parts["told"].phase == "draining"
    desk.run()
    assert parts(desk).parts["told"].phase == "standby"
    change = detached(desk)
    assert (change.records, change.timers, change.keys) == (0, 0, 1)
    rows = [name for kind in (SLAB, INTERVAL, CHUNK) for name in desk.rows(kind)]
    assert not [name for name in rows if ":told:" in name]
    with pytest.raises(TopologyError, match=r"last one|no computation would write"):
        desk.do(detach(desk.environment, "tally", discard=False))
    push(desk, 3)
    desk.run()
    assert desk.state("second", "a") == {"at": [1, 2, 3], "told": [[1, 1], [2, 1], [3, 1]]}

    desk.do(attach(desk.environment, "told", None))
    push(desk, 4)
    desk.run()
    assert desk.state("told", "a") == {"told": [[4, 1]]}


def beside(act: Callable[[], object], steps: Steps) -> Steps:
    """Take steps while something else happens before each of their calls."""
    call = next(steps)
    while True:
        act()
        try:
            answer = yield call
        except ChangedError as error:
            go_on: Any = partial(steps.throw, error)
        else:
            go_on = partial(steps.send, answer)
        try:
            call = go_on()
        except StopIteration:
            return


def test_a_change_comes_to_its_commit_while_idle_senders_begin_to_work() -> None:
    """G15: it acknowledged itself for them, and lost each of its twenty races to one of them."""
    desk = desk_of(Tally2, Second)
    push(desk, 1)
    desk.run()

    def send_after_a_pause() -> None:
        desk.wait(2)
        push(desk, desk.simulation.now_ms)

    for change in (
        lambda: replace(desk.environment, "tally", 2),
        lambda: attach(desk.environment, "second", None),
        lambda: detach(desk.environment, "second", discard=True),
    ):
        desk.do(beside(send_after_a_pause, change()))
        desk.run()
    assert [change.action for change in parts(desk).changes] == ["detached", "attached", "replaced"]


def test_the_last_changes_are_remembered_and_no_more() -> None:
    """The head is read by everybody: it does not grow with each deployment."""
    head = Head()
    for at_ms in range(MAX_HISTORY + 2):
        head = with_change(head, Change("tally", "replaced", 2, 1, at_ms))

    assert [change.at_ms for change in history_of(head)] == [*range(MAX_HISTORY + 1, 1, -1)]
