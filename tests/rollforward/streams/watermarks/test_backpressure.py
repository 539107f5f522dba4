"""Sources that have to wait: for who works on their records, and for their siblings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rollforward.runtime import Clients
from rollforward.streams import FOREVER, Pipeline, Pulled, PullSource, PushSource
from rollforward.streams.coordinator import tick
from rollforward.streams.driver import Engine
from rollforward.streams.model.errors import BackpressureError
from rollforward.streams.model.limits import Limits
from rollforward.streams.storage.schema import Head, SourceRow
from rollforward.streams.watermarks.backpressure import Backlog, paused_sources
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import WEBLOG, hits, stream_world, windows

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)
STAGES = WEBLOG.computations.values()
NARROW = Pipeline("narrow", *STAGES, intervals=1, limits=Limits(waiting_rows=2))


def look(clients: Clients, pipeline: Pipeline) -> None:
    """Run a tick without workers."""
    engine = Engine(clients, pipeline)
    engine.run(tick(engine.environment))


@one_emulator
def test_a_push_waits_until_those_who_work_have_caught_up(services: Services) -> None:
    """G11: it is refused with 429 before a record is accepted, and succeeds later."""
    world = stream_world(services, NARROW)
    with world.context():
        for n in range(3):
            NARROW.push(world.clients, "requests", hits((f"a{n}", "/", n)))
        look(world.clients, NARROW)
        with pytest.raises(BackpressureError, match="hits has over 2 rows waiting"):
            NARROW.push(world.clients, "requests", hits(("b", "/", 4)))
        status = NARROW.status(world.clients)
        assert status.sources["requests"].paused == {"": "hits has over 2 rows waiting"}
        assert (status.computations["hits"].waiting_rows, status.sources["requests"].records) == (
            3,
            3,
        )
    answer = post(world, [{"id": "b", "value": {"path": "/"}, "timestamp_ms": 4}])
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    shown = get(world, "narrow").json
    assert shown["sources"]["requests"]["paused"] == {"": "hits has over 2 rows waiting"}
    assert get(world, "none").status_code == 404

    world.settle()
    assert post(world, [{"id": "b", "value": {"path": "/"}, "timestamp_ms": 4}]).status_code == 202
    with world.context():
        NARROW.close(world.clients, "requests")
    world.settle()
    assert windows(world, NARROW) == {"0": [["/", 4]]}


def post(world: World, records: list[dict[str, Any]]) -> Any:
    return world.app.test_client().post(
        "/api/v1/streams/narrow/requests", json={"records": records}, headers=proof(world)
    )


def get(world: World, name: str) -> Any:
    return world.app.test_client().get(f"/api/v1/streams/{name}", headers=proof(world))


def proof(world: World) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.engine.tokens.oidc_token(ACCOUNT, BASE_URL)}"}


@one_emulator
def test_a_pull_stops_while_much_waits_and_goes_on_by_itself(services: Services) -> None:
    """G11: nothing is read twice."""
    reads = []

    def read(clients: Clients, position: Any, limit: int) -> Pulled:
        start = position or 0
        reads.append(start)
        look(clients, narrow)
        lines = [({"path": f"/{n % 3}"}, n * 1_000) for n in range(start, min(start + 10, 60))]
        return Pulled(lines, start + len(lines), is_over=start + len(lines) == 60)

    narrow = Pipeline(
        "narrow", *STAGES, intervals=1, limits=Limits(waiting_rows=1),
        sources=[PullSource("requests", read)],
    )  # fmt: skip
    world = stream_world(services, narrow)
    with world.context():
        narrow.pull(world.clients, "requests")
    world.settle()
    assert windows(world, narrow) == {"0": [[f"/{n}", 20] for n in range(3)]}
    assert len(reads) > len(set(reads)) == 6  # It was stopped, and read on from where it was.


def row(watermark: int, **fields: Any) -> SourceRow:
    return SourceRow(watermark=watermark, seq=1, **fields)


def test_a_source_far_ahead_of_the_slowest_waits_until_half_of_that() -> None:
    """G11: idle, finished and new processes are no measure."""
    pipeline = Pipeline(
        "skewed", *STAGES, limits=Limits(max_drift=timedelta(seconds=10)),
        sources=[PushSource("requests", processes=("a", "b", "c", "d", "e"))],
    )  # fmt: skip
    idle, over = row(0, is_idle=True), row(FOREVER)

    def paused(ahead: int, **reasons: str) -> dict[str, str]:
        rows = dict(zip("abcde", [row(ahead), row(1), idle, over, SourceRow()], strict=True))
        head = Head(paused={f"requests:{name}": reason for name, reason in reasons.items()})
        places = {("requests", name): source for name, source in rows.items()}
        return paused_sources(pipeline, head, {}, places)

    assert paused(10_001) == {}
    assert paused(10_002) == {"requests:a": "it is over 0:00:10 ahead of requests:b"}
    assert list(paused(5_002, a="why")) == ["requests:a"]
    assert paused(5_001, a="why") == {}


def test_bytes_count_as_rows_do() -> None:
    pipeline = Pipeline("full", *STAGES, limits=Limits(waiting_bytes=1_000))
    assert paused_sources(pipeline, Head(), {"minutes": Backlog(1, 1, 1_000)}, {}) == {}
    paused = paused_sources(pipeline, Head(), {"minutes": Backlog(1, 1, 1_001)}, {})
    assert paused == {"requests:": "minutes has over 1000 bytes waiting"}


@pytest.mark.parametrize(
    ("intervals", "limits", "most"),
    [
        (1, Limits(), 5_000),
        (15, Limits(), 5_000),
        (16, Limits(), 5_120),
        (64, Limits(), 20_480),
        (64, Limits(waiting_rows=200), 200),
    ],
)
def test_more_may_wait_for_many_intervals_unless_it_is_declared(
    intervals: int, limits: Limits, most: int
) -> None:
    """G11: workers of 64 intervals would stand still for want of records."""
    pipeline = Pipeline("wide", *STAGES, limits=limits)
    head = Head(intervals={"hits": range(99), "minutes": range(intervals)})
    assert paused_sources(pipeline, head, {"minutes": Backlog(most, 1, 1)}, {}) == {}
    paused = paused_sources(pipeline, head, {"minutes": Backlog(most + 1, 1, 1)}, {})
    assert paused == {"requests:": f"minutes has over {most} rows waiting"}
