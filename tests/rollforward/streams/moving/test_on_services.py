"""A pipeline that moves on the services."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollforward.streams import FOREVER, entities
from rollforward.streams.listing import pipeline_details
from rollforward.streams.moving import export_to, import_from, resume, stop
from rollforward.tasks.errors import Retry
from tests.infra.world import World
from tests.rollforward.streams import harness
from tests.rollforward.streams.harness import WEBLOG, hits, windows


def facts(world: World) -> Mapping[str, Any]:
    """Return what the console says of the pipeline."""
    return pipeline_details(world.clients, WEBLOG).numbers


def test_windows_over_a_move_are_those_of_one_pipeline(world: World, tmp_path: Path) -> None:
    """A stop refuses pushes, an export is read page by page, and another pipeline goes on."""
    first = hits(("1", "/", 1_000), ("2", "/a", 2_000), ("3", "/", 61_000))
    path = tmp_path / "export"
    with world.context():
        WEBLOG.push(world.clients, "requests", first)
    world.settle()
    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("4", "/", 62_000)))
        stop(world.clients, WEBLOG)
        stop(world.clients, WEBLOG)
        with pytest.raises(Retry):
            WEBLOG.push(world.clients, "requests", hits(("5", "/", 63_000)))
        assert facts(world)["stopped"] == "until it is resumed"
        header = export_to(world.clients, WEBLOG, path)
        assert header.sources == [["requests", "", 60_000, None]]
        harness.delete_rows(entities)
        import_from(world.clients, WEBLOG, path)
        import_from(world.clients, WEBLOG, path)
        rest = hits(("5", "/", 63_000), ("4", "/", 62_000))
        WEBLOG.push(world.clients, "requests", rest, watermark=FOREVER)
        resume(world.clients, WEBLOG)
        assert "stopped" not in facts(world)
    world.settle()

    assert windows(world) == {
        "0": [["/", 1], ["/a", 1]],
        "60000": [["/", 3]],
    }
