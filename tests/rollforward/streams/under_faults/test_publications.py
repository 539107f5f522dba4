"""Two pipelines on the services, one reading the other, with a fault at each remote call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.streams import FOREVER, Computation, Context, Pipeline, Record
from rollforward.streams import entities as streams
from rollforward.streams.entities import StreamLog, StreamSubscription
from rollforward.streams.listing import pipeline_details
from rollforward.streams.model.errors import TopologyError, UnknownStreamError
from rollforward.streams.publications import Publication, Subscription
from rollforward.streams.subscriptions import subscribers, unsubscribe
from rollforward.tasks import Retry, Unavailable
from rollforward.testing.injection import KINDS, OVERLAP
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import (
    REQUESTS,
    Hits,
    Minutes,
    dead,
    delete_rows,
    hits,
    is_drained,
    stream_world,
    windows_here,
)

TRUTH = {"0": [["/", 2], ["/x", 1]], "60000": [["/", 1]]}
RECORDS = hits(("a", "/", 1_000), ("b", "/x", 2_000), ("c", "/", 50_000))
LAST = hits(("d", "/", 61_000))


class Dashboard(Minutes):
    """The windows, as another pipeline reads them."""

    name = "minutes"


class Totals(Computation):
    """All hits of a path."""

    inputs: ClassVar = {"hits": lambda hits: str(hits["path"])}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("hits").add(record.value["hits"])


PUBLISHED = Publication("hits", keep=timedelta(minutes=10))
PUBLISHER = Pipeline("publisher", Hits, intervals=1, sources=[REQUESTS], sinks=[PUBLISHED])
SUBSCRIBER = Pipeline(
    "dashboard", Dashboard, intervals=1, sources=[Subscription(PUBLISHED, start="earliest")]
)
# It reads when a test says so, and no task of it is due soon.
REPORTS = Pipeline(
    "reports", Dashboard, intervals=1, standby=[Totals],
    sources=[Subscription(PUBLISHED, start="earliest", poll=timedelta(hours=1))],
)  # fmt: skip


@pytest.fixture
def world(services: Services) -> World:
    return stream_world(services, PUBLISHER, SUBSCRIBER, REPORTS)


class Reading:
    """Records of the publisher that come twice, and its end, while the subscriber begins."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun: set[str] = set()

    def begin(self, tag: str) -> None:
        if tag not in self.begun:
            self.begun.add(tag)
            with self.world.plan.unwatched():
                delete_rows(streams)
            caches = self.world.clients.process_state.get_or_create("streams dashboard", dict)
            caches.clear()  # It knows that it has registered, and the rows are gone.
        clients = self.world.clients
        try:
            PUBLISHER.push(clients, "requests", RECORDS)
            SUBSCRIBER.pull(clients, "hits")
            PUBLISHER.push(clients, "requests", [*RECORDS[1:], *LAST])
            PUBLISHER.close(clients, "requests")
        except (Retry, Unavailable) as error:
            raise rpc_errors.ServiceUnavailable(str(error)) from error  # type: ignore[no-untyped-call]

    def is_done(self, tag: str) -> bool:
        return is_drained() and windows_here(self.world.clients, SUBSCRIBER) == TRUTH

    def check(self, tag: str, fault: str) -> None:
        found = SUBSCRIBER.status(self.world.clients)
        assert found.sources["hits"].watermark == FOREVER, fault
        assert (found.computations["minutes"].records, dead()) == (3, 0), fault
        assert found.computations["minutes"].late == 0, fault
        assert len(StreamSubscription.query().fetch(keys_only=True)) == 1, fault


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
@pytest.mark.parametrize("kind", [*KINDS, OVERLAP])
def test_a_subscriber_is_exact_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """G20: of the publisher's and of its own, while it registers and reads."""
    Explorer(world, Reading(world)).explore([kind], at_most=2)


def test_a_pipeline_reads_another_one_and_is_attached_and_detached_while_both_run(
    world: World,
) -> None:
    """G20, G21: rows are kept until it has read them, and the publisher knows its readers."""
    clients = world.clients
    with world.context():
        PUBLISHER.push(clients, "requests", [*RECORDS, *LAST], watermark=60_000)
    world.settle(patience_s=30)
    read(world)
    with world.context():
        assert windows_here(clients, REPORTS) == {"0": TRUTH["0"]}
        [reader] = subscribers(clients, PUBLISHER, PUBLISHED)
        assert (str(reader), reader.positions[0].number) == ("reports/hits", 2)
        with pytest.raises(TopologyError, match="reports/hits reads hits-log"):
            PUBLISHER.detach(clients, "hits-log")
        facts = pipeline_details(clients, PUBLISHER).numbers
        assert facts["unread_of_hits-log"] == "reports/hits: 0"
        with pytest.raises(UnknownStreamError, match="reports has no publication"):
            subscribers(clients, REPORTS, PUBLISHED)

        REPORTS.attach(clients, "totals")
        PUBLISHER.close(clients, "requests")
        assert unread(world) == {"hits": 0, "hits-log": 0, "minutes": 0, "totals": 0}
    world.settle(patience_s=30)
    with world.context():
        assert unread(world) == {"hits": 0, "hits-log": 1, "minutes": 0, "totals": 0}
    world.clock.sleep(660)
    world.sweep()
    with world.context():
        assert len(StreamLog.query().fetch()) > 0
    read(world)
    with world.context():
        assert windows_here(clients, REPORTS) == TRUTH
        totals: Any = dict(REPORTS.states(clients, "totals"))
        assert totals == {"/": {"hits": 1}}  # The window that closed after it was attached.
    world.sweep()
    with world.context():
        assert StreamLog.query().fetch() == []
        assert unsubscribe(clients, PUBLISHER, PUBLISHED, reader)
        assert not unsubscribe(clients, PUBLISHER, PUBLISHED, reader)
        PUBLISHER.detach(clients, "hits-log")
    world.settle(patience_s=30)
    with world.context():
        assert PUBLISHER.topology(clients).parts["hits-log"].phase != "running"


def unread(world: World) -> dict[str, float]:
    """Return the gauge of unread records by computation."""
    gauges = world.registry.gauges(world.clients)
    named = [gauge for gauge in gauges if gauge.name == "streams_unread_records"]
    return {gauge.labels["computation"]: gauge.value for gauge in named}


def read(world: World) -> None:
    """Let the subscriber read the log to its end, and process what came."""
    with world.context():
        REPORTS.pull(world.clients, "hits")
    world.settle(patience_s=30)
