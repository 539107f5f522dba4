"""Subscriptions: a pipeline reads what another one publishes, each record once and in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rollforward.streams import FOREVER, Pipeline
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.model.errors import MissingCodeError, TopologyError
from rollforward.streams.publications import Publication
from rollforward.streams.publications.registration import register, unregister
from rollforward.streams.storage.remote_calls import ChangedError, Commit, OutcomeUnknownError
from rollforward.streams.topology.changes import attach, detach, replace
from tests.rollforward.streams.publications.publishing import MINUTE_S, Again, Couple, Pass
from tests.rollforward.streams.simulator.driver import Came, is_batch

KEPT_MS = 1_000


def test_a_subscriber_reads_each_record_once_and_in_time() -> None:
    """G20: also one that begins when others have read, from its own position."""
    couple = Couple(start="earliest")
    couple.publish(1_000, 2_000)
    couple.read()
    couple.publish(3_000)
    couple.read()
    couple.read()
    other = couple.subscribe("reports", start="earliest")
    couple.read(other)

    assert (couple.seen(), couple.seen(kind="late")) == ([1_000, 2_000, 3_000], [])
    assert (couple.seen(desk=other), couple.seen(desk=other, kind="late")) == (couple.seen(), [])
    assert couple.subscriber.head.sources["hits"] == couple.publisher.head.sources["in"] == 3_000


def test_a_subscriber_begins_at_the_latest_record_by_default() -> None:
    couple = Couple()
    couple.publish(1_000, 2_000)
    couple.read()
    couple.publish(3_000)
    couple.read()

    assert couple.seen() == [3_000]


def test_a_subscriber_that_begins_before_its_publisher_misses_nothing() -> None:
    couple = Couple()
    couple.read()
    couple.publish(1_000, 2_000)
    couple.read()

    assert couple.seen() == [1_000, 2_000]


def test_the_earliest_record_is_the_first_that_is_kept() -> None:
    """What was deleted before a subscriber began is not missing."""
    couple = Couple(Publication("hits", keep=timedelta(0)), start="earliest")
    couple.publish(1_000)
    couple.wait(MINUTE_S)
    couple.sweep()
    couple.publish(2_000)
    couple.read()

    assert (couple.seen(), couple.subscriber.rows("StreamDead")) == ([2_000], [])


def test_other_code_with_fewer_partitions_registers_nobody() -> None:
    """G21: a row with its partitions would let the sweep delete the others unread."""
    publication = Publication("hits", key=lambda value: value["k"], partitions=2)
    couple = Couple(publication, start="earliest")
    couple.publish(1_000)
    older = Publication("hits")
    Pipeline("weblog", Pass, sinks=[older])
    couple.publication = older
    other = couple.subscribe("alerts", start="earliest")
    with pytest.raises(MissingCodeError):
        other.do(pull(other.environment, "hits", "0"))

    assert couple.publisher.rows("StreamSubscription") == []


def test_a_subscriber_begins_at_an_event_time() -> None:
    """It gets all kept records from this time on, in whichever order they came."""
    couple = Couple(start=datetime.fromtimestamp(2, UTC))
    couple.publish(1_000, 2_000)
    couple.publish(1_500)
    couple.publish(1_999, 3_000, key="b")
    couple.read()

    assert (couple.seen(), couple.seen("b")) == ([2_000], [3_000])


def test_a_record_that_is_late_there_is_late_here() -> None:
    """G20: and one that waits in the publication's inbox is not, however long that takes."""
    couple = Couple(start="earliest")
    couple.publish(1_000, 5_000)
    couple.read()
    couple.publish(4_000)
    couple.publish(6_000, watermark=6_000)
    couple.publisher.push(Came("slow", "a", 7_000), watermark=9_000)
    worker = couple.publisher.worker("pass")
    call = couple.publisher.until(worker, Commit, of=2)
    couple.publisher.finish(worker, call)
    couple.tick()  # The record is in the inbox of the publication alone.
    couple.read()
    waited = couple.subscriber.head.sources["hits"]
    couple.publisher.run()
    couple.tick()
    couple.read()

    assert waited == 7_000
    assert couple.subscriber.head.sources["hits"] == 9_000
    assert (couple.seen(), couple.seen(kind="late")) == ([1_000, 5_000, 6_000, 7_000], [4_000])


def test_the_watermarks_of_a_log_are_those_of_its_time() -> None:
    """G20: a subscriber that reads a backlog finds the same records late as one that was there."""
    couple = Couple(start="earliest")
    for time in (1_000, 5_000, 4_000, 8_000):
        couple.publish(time)
        couple.read()
    other = couple.subscribe("reports", start="earliest")
    couple.read(other)

    assert couple.seen(kind="late") == couple.seen(desk=other, kind="late") == [4_000]
    assert couple.seen() == couple.seen(desk=other) == [1_000, 5_000, 8_000]


def test_the_end_of_the_publisher_is_the_end_here_and_a_later_record_still_comes() -> None:
    """G20: by the sweep, which finds the end of the log beyond the position."""
    couple = Couple(start="earliest")
    couple.publish(1_000)
    couple.publish(watermark=FOREVER)
    couple.read()
    assert couple.subscriber.head.sources["hits"] == FOREVER
    couple.sweep(couple.subscriber)
    assert couple.woken() == []

    couple.publish(2_000)
    couple.sweep(couple.subscriber)
    assert couple.woken() == ["hits/0"]
    couple.read()
    assert (couple.seen(), couple.seen(kind="late")) == ([1_000], [2_000])


def test_partitions_have_a_log_and_a_position_each() -> None:
    publication = Publication("hits", key=lambda value: value["k"], partitions=4)
    couple = Couple(publication, start="earliest")
    keys = "abcdefgh"
    couple.publisher.push(*(Came(f"{key}{at}", key, at) for key in keys for at in (1_000, 2_000)))
    couple.publish()
    assert len({name.split(":")[2] for name in couple.log()}) > 1
    for partition in ("0", "1", "2", "3", "3"):
        couple.read(partition=partition)

    assert [couple.seen(key) for key in keys] == [[1_000, 2_000]] * 8
    assert couple.subscriber.head.sources["hits"] == 2_000


def test_a_partition_that_nobody_has_read_holds_the_watermark() -> None:
    """G20: its log may have records that are on time."""
    publication = Publication("hits", key=lambda value: value["k"], partitions=2)
    couple = Couple(publication, start="earliest")
    couple.publish(1_000, 2_000)
    couple.read(partition="0")

    assert couple.subscriber.head.sources["hits"] == 0


def test_other_code_with_another_number_of_partitions_reads_nothing() -> None:
    couple = Couple(start="earliest")
    couple.publish(1_000)
    publication = Publication("hits", key=lambda value: value["k"], partitions=2)
    Pipeline("weblog", Pass, sinks=[publication])
    couple.publication = publication
    other = couple.subscribe("alerts", start="earliest")

    with pytest.raises(MissingCodeError, match="runs with 1 partitions, and this code has 2"):
        other.do(pull(other.environment, "hits", "0"))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_row_is_read_in_parts(limit: int) -> None:
    """Where a commit holds fewer records than a row of the log, none is lost or doubled."""
    couple = Couple(start="earliest")
    couple.publish(*range(1_000, 1_007))
    assert len(couple.log()) == 1
    couple.subscriber.simulation.machines[0].caches["pull limit", ("hits", "0")] = limit
    for _ in range(8):
        couple.read()

    assert couple.seen() == list(range(1_000, 1_007))


def test_a_row_has_no_more_than_fits() -> None:
    couple = Couple(start="earliest")
    large = [Came(str(n), "a", 1_000 + n) for n in range(9)]
    couple.publisher.push(*large, text="x" * 90_000)
    couple.publisher.run()
    assert len(couple.log()) > 4
    for _ in range(4):
        couple.read()

    assert couple.seen() == [1_000 + n for n in range(9)]


def test_a_publication_that_is_attached_again_continues_its_log() -> None:
    """Its numbers begin at 0 again; a subscriber that was away reads on behind what it knows."""
    couple = Couple(start="earliest")
    publisher = couple.publisher
    couple.publish(1_000, 2_000)
    couple.read()
    publisher.do(unregister(publisher.environment, "hits-log", "alerts", "hits"))
    publisher.do(detach(publisher.environment, "hits-log", discard=False))
    publisher.run()
    assert "hits-log" not in publisher.head.topology
    couple.publish(3_000)  # Nobody keeps it.
    couple.read()
    publisher.do(attach(publisher.environment, "hits-log", None))
    couple.publish(4_000, 5_000)
    couple.read()
    couple.read()

    assert couple.seen() == [1_000, 2_000, 4_000, 5_000]
    assert couple.subscriber.head.sources["hits"] == 5_000


def test_a_version_with_other_partitions_does_not_replace_a_publication() -> None:
    """Its subscribers have positions in the logs that are there; another version may."""
    couple = Couple(start="earliest")
    publisher = couple.publisher
    couple.publish(1_000)
    couple.read()
    for version, partitions in ((2, 2), (3, 1)):
        code = Publication("hits", key=lambda value: value["k"], partitions=partitions)
        code.version, code.pipeline = version, "weblog"
        publisher.pipeline.versions["hits-log", version] = code

    with pytest.raises(TopologyError, match="another number of partitions"):
        publisher.do(replace(publisher.environment, "hits-log", 2))
    publisher.do(replace(publisher.environment, "hits-log", 3))
    couple.publish(2_000)
    couple.read()
    assert couple.seen() == [1_000, 2_000]


# Deletion


def test_rows_are_kept_for_their_time_and_until_all_have_read_them() -> None:
    """G21: whichever is later; both have two sides."""
    couple = Couple(Publication("hits", keep=timedelta(seconds=10)), start="earliest")
    couple.publish(1_000)
    couple.read()
    couple.wait(9)
    couple.sweep()
    assert len(couple.log()) == 1
    couple.publish(2_000)  # Not read.
    couple.wait(20)
    couple.sweep()
    assert len(couple.log()) == 1
    couple.sweep()
    assert len(couple.log()) == 1
    couple.read()
    couple.sweep()
    assert couple.log() == []
    assert couple.seen() == [1_000, 2_000]


def test_rows_are_kept_for_the_longest_time_that_a_version_asks_for() -> None:
    """G21: of a version that is attached later, before and after its logs are read, too."""

    class Longer(Publication):
        version = 2

    longer = Longer("hits", keep=timedelta(hours=1), key=lambda hit: hit["k"], partitions=2)
    couple = Couple(Publication("hits", keep=timedelta(seconds=10)), later=[longer])
    couple.publish(1_000)
    couple.wait(11)
    couple.sweep()
    assert len(couple.log()) == 1

    couple.publisher.do(detach(couple.publisher.environment, "hits-log", discard=False))
    couple.publisher.run()
    couple.publisher.do(attach(couple.publisher.environment, "hits-log", 2))
    couple.publisher.run()
    for key in "abcd":
        couple.publish(2_000, key=key)
    assert len(couple.log()) == 5
    couple.wait(60 * MINUTE_S)
    couple.sweep()
    assert couple.log() == []


def test_the_slowest_subscriber_holds_the_rows() -> None:
    """G21: also one that has registered, and has read nothing."""
    couple = Couple(Publication("hits", keep=timedelta(0)), start="earliest")
    couple.publish(1_000)
    other = couple.subscribe("reports", start="earliest")
    other.do(register(other.environment, other.pipeline.source("hits"), 0))  # type: ignore[arg-type]
    couple.subscriber.do(pull(couple.subscriber.environment, "hits", "0"))
    other_head = other.do(_begin(other))
    assert other_head
    couple.wait(MINUTE_S)
    couple.sweep()
    assert len(couple.log()) == 1

    couple.read(other)
    couple.sweep()
    assert couple.log() == []
    assert couple.seen(desk=other) == [1_000]


def _begin(desk: Any) -> Any:
    from rollforward.streams.graph.head import read_head

    return (yield from read_head(desk.environment))


def test_records_that_were_deleted_unread_become_a_dead_letter() -> None:
    """A subscriber whose row was deleted by hand is told what it has missed."""
    couple = Couple(Publication("hits", keep=timedelta(0)), start="earliest")
    couple.publish(1_000)
    couple.read()
    assert couple.publisher.do(
        unregister(couple.publisher.environment, "hits-log", "alerts", "hits")
    )
    couple.publish(2_000)
    couple.wait(MINUTE_S)
    couple.sweep()
    couple.publish(3_000)
    couple.read()

    [name] = couple.subscriber.rows("StreamDead")
    rows = couple.subscriber.simulation.store.rows
    [dead] = [row.body for key, row in rows.items() if key.name == name]
    assert "records 1 to 1 were deleted" in dead.record.text
    assert couple.seen() == [1_000, 3_000]


# Registration


def test_a_publication_that_is_read_is_not_detached() -> None:
    """G21: by the names of its readers; once they are detached it is."""
    couple = Couple(start="earliest", standby=[Again])
    couple.publish(1_000)
    couple.read()
    with pytest.raises(TopologyError, match=r"alerts/hits reads hits-log"):
        couple.publisher.do(detach(couple.publisher.environment, "hits-log", discard=False))

    subscriber = couple.subscriber
    subscriber.do(attach(subscriber.environment, "again", None))
    subscriber.do(detach(subscriber.environment, "seen", discard=True))
    for _ in range(5):
        couple.wait(MINUTE_S)
        subscriber.do(pull(subscriber.environment, "hits", "0"))
        subscriber.do(tick(subscriber.environment))
    assert [*subscriber.head.topology] == ["again"]
    with pytest.raises(TopologyError, match=r"alerts/hits reads hits-log"):
        couple.publisher.do(detach(couple.publisher.environment, "hits-log", discard=False))


def test_a_pipeline_that_reads_nothing_any_more_is_no_subscriber() -> None:
    couple = Couple(start="earliest")
    couple.publish(1_000)
    couple.read()
    key = couple.subscriber.environment.names.head
    row = couple.subscriber.simulation.store.rows.pop(key)
    couple.publisher.do(detach(couple.publisher.environment, "hits-log", discard=False))
    assert row.body.topology
    assert couple.publisher.rows("StreamSubscription") == []
    couple.publisher.run()
    assert "hits-log" not in couple.publisher.head.topology


@pytest.mark.parametrize("is_first", [True, False])
def test_a_subscriber_that_registers_while_the_publication_is_detached(is_first: bool) -> None:
    """G21: one of the two sees the other, whichever commits first."""
    couple = Couple(start="earliest")
    couple.publish(1_000)
    publisher, subscriber = couple.publisher, couple.subscriber
    subscriber.do(_begin(subscriber))
    source: Any = subscriber.pipeline.source("hits")
    if is_first:
        leaving = detach(publisher.environment, "hits-log", discard=False)
        call = publisher.until(leaving, Commit)
        subscriber.do(register(subscriber.environment, source, 0))
        with pytest.raises(TopologyError, match="alerts/hits"):
            publisher.finish(leaving, call)
    else:
        entering = register(subscriber.environment, source, 0)
        call = subscriber.until(entering, Commit)
        publisher.do(detach(publisher.environment, "hits-log", discard=False))
        with pytest.raises(ChangedError):
            subscriber.finish(entering, call)
        subscriber.do(register(subscriber.environment, source, 0))
        assert publisher.rows("StreamSubscription") == []


def test_a_registration_whose_reply_is_lost_is_tried_again() -> None:
    couple = Couple(start="earliest")
    couple.publish(1_000)
    subscriber = couple.subscriber
    subscriber.do(_begin(subscriber))
    entering = register(subscriber.environment, subscriber.pipeline.source("hits"), 0)  # type: ignore[arg-type]
    call = subscriber.until(entering, Commit)
    subscriber.simulation.acts[Commit](call)
    with pytest.raises(ChangedError):
        entering.throw(OutcomeUnknownError())
    couple.read()

    assert len(couple.publisher.rows("StreamSubscription")) == 1
    assert couple.seen() == [1_000]


# Faults


def test_a_commit_of_the_log_whose_reply_is_lost_is_in_it_once() -> None:
    """G20: also if it arrives after another worker has the interval."""
    couple = Couple(start="earliest")
    publisher = couple.publisher
    publisher.push(Came("1", "a", 1_000))
    publisher.do(publisher.worker("pass"))
    slow = publisher.worker("hits-log")
    call = publisher.until(slow, Commit, of=2)
    assert is_batch(call)
    publisher.wait(60)
    couple.publish(2_000)
    with pytest.raises(ChangedError):
        publisher.simulation.acts[Commit](call)
    couple.read()

    assert couple.seen() == [1_000, 2_000]
