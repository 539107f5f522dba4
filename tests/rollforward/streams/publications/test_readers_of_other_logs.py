"""Publishers that begin anew, and publications with many readers: refused, and not read wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollforward.streams.model.errors import TopologyError
from rollforward.streams.moving.importing import import_with
from rollforward.streams.publications import registration
from rollforward.streams.storage.remote_calls import Commit, Key, Steps
from rollforward.streams.storage.schema import HEAD, LOG, LogRow, SubscriptionRow
from tests.rollforward.streams.moving import moves
from tests.rollforward.streams.publications.publishing import MINUTE_S, Couple
from tests.rollforward.streams.simulator.driver import Desk

pytestmark = pytest.mark.fast


def test_a_subscriber_reads_no_log_of_a_publisher_that_began_anew() -> None:
    """G20: it would pass over as many records as it had read of the earlier log."""
    couple, anew = Couple(start="earliest"), Couple(start="earliest")
    couple.publish(1_000, 2_000)
    couple.read()
    anew.publish(3_000)
    rows = couple.subscriber.simulation.store.rows
    for key in [key for key in rows if is_of_the_publisher(key)]:
        del rows[key]
    others = anew.publisher.simulation.store.rows.items()
    rows |= {key: row for key, row in others if is_of_the_publisher(key)}

    couple.wait(MINUTE_S)
    with pytest.raises(TopologyError, match=r"weblog began anew\. Give the subscription another"):
        couple.read()


def is_of_the_publisher(key: Key) -> bool:
    return key.name.partition(":")[0] == "weblog"


def test_a_subscriber_too_many_is_refused_and_the_others_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G20: the publisher reads all subscribers at once, to know what to keep for them."""
    monkeypatch.setattr(registration, "MAX_SUBSCRIBERS", 1)
    couple = Couple(start="earliest")
    couple.publish(1_000)
    couple.read()
    other = couple.subscribe("reports", start="earliest")

    with pytest.raises(TopologyError, match="hits-log has 1 subscribers, as many as it may have"):
        couple.read(other)
    couple.publish(2_000)
    couple.wait(MINUTE_S)
    couple.read()
    assert couple.seen() == [1_000, 2_000]


@pytest.mark.parametrize("is_read", [False, True], ids=["log", "subscription"])
def test_a_pipeline_is_not_imported_under_a_name_that_has_published(
    tmp_path: Path, is_read: bool
) -> None:
    """G22: nothing is written."""
    path = moves.exported(moves.first_half(), tmp_path / "export")
    desk = Desk(moves.pipeline())
    names = desk.environment.names
    row = (names.subscription("hits-log", "alerts", "hits"), SubscriptionRow("alerts", "hits", "0"))
    log = (names.log("hits-log", 0, 0, 1, 1), LogRow(0, 0, 1, [(1, "x")]))

    def leave() -> Steps[None]:
        yield Commit(inserts=[row if is_read else log])

    desk.do(leave())
    with pytest.raises(TopologyError, match="moving has published a stream here"):
        import_with(moves.run_of(desk), path)
    assert not desk.rows(HEAD)
    assert len(desk.rows(LOG)) == (not is_read)
