"""Hits per path and minute, from requests in any order: an example of the how-to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rollforward.streams import Computation, Context, Pipeline, Record, Timer
from rollforward.streams.model.computation import KeyOf

# howto: compute-over-streams.md
MINUTE = 60_000


class HitsPerMinute(Computation):
    inputs: ClassVar[Mapping[str, KeyOf]] = {"requests": lambda request: request["path"]}
    outputs = ("hits",)

    def record(self, ctx: Context, record: Record) -> None:
        start = record.timestamp_ms // MINUTE * MINUTE
        if start + MINUTE <= ctx.watermark:
            ctx.drop_late()  # Its window is closed.
            return
        ctx.state.map("windows").add(str(start))
        ctx.set_timer(str(start), start + MINUTE)

    def timer(self, ctx: Context, timer: Timer) -> None:
        hits = ctx.state.map("windows").pop(timer.tag)
        ctx.produce("hits", {"path": ctx.key, "minute": int(timer.tag), "hits": hits})


class BusiestPaths(Computation):
    inputs: ClassVar[Mapping[str, KeyOf]] = {"hits": lambda hits: str(hits["minute"])}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.map("paths").set(record.value["path"], record.value["hits"])


WEBLOG = Pipeline("hits-example", HitsPerMinute, BusiestPaths)
