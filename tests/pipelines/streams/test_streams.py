"""Pipelines on Datastore and Cloud Tasks."""

from __future__ import annotations

from tests.pipelines.streams.harness import WEBLOG, hits, is_drained, windows
from tests.world import World


def test_records_become_windows_when_the_watermark_passes_them(world: World) -> None:
    """G1, G2, G3: each record counts once, each window is written once."""
    pushed = hits(("a", "/", 1_000), ("b", "/x", 2_000), ("c", "/", 59_999), ("d", "/", 60_000))
    with world.context():
        accepted = WEBLOG.push(world.clients, "requests", pushed)
    assert (accepted.records, accepted.late, accepted.watermark) == (4, 0, 58_000)
    world.settle()
    assert windows(world) == {}

    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("e", "/", 62_000)))
    world.settle()
    assert windows(world) == {"0": [["/", 2], ["/x", 1]]}

    with world.context():
        WEBLOG.close(world.clients, "requests")
    world.settle()
    with world.context():
        assert is_drained()
        status = WEBLOG.status(world.clients)
    assert windows(world) == {"0": [["/", 2], ["/x", 1]], "60000": [["/", 2]]}
    assert status.computations["hits"].records == 5
    assert status.computations["hits"].waiting == 0
    assert status.computations["minutes"].records == 3
