"""An app whose pushes join the commits of its workers, which a test kills.

Each push that did so is a line in a file.
"""

from __future__ import annotations

import os
from typing import ClassVar

from flask import Flask

from rollforward import flask as endpoints
from rollforward.flask.context import clients
from rollforward.registry import Registry
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, PushSource, Record
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.storage import inbox_hints
from rollforward.streams.storage.joint_commits import JointCommits, Versions
from rollforward.streams.storage.remote_calls import Commit

JOINED = "JOINED_PUSHES"  # The path of the file.
KEYS = 50
START_MS = 1_760_000_000_000
# Pushes join again soon after a crash, so that each kill meets some that do.
PACE = StreamConfig(lease_ms=2_000, unjoined_ms=500)


class Kept(Computation):
    """All records of a key, as they came."""

    inputs: ClassVar = {"in": lambda value: value["key"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("numbers").append(record.value["number"])


PIPELINE = Pipeline("joint-killed", Kept, sources=[PushSource("in")], intervals=1)


class NotedCommits(JointCommits):
    """Joint commits that note which pushes have joined one."""

    def offer(self, commit: Commit) -> Versions | None:
        versions = super().offer(commit)
        if versions is not None:
            with open(os.environ[JOINED], "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n")
        return versions


def push(first: int, end: int) -> str:
    """Push some records: as a part of this request, with which it dies."""
    records = [
        PushedRecord(f"{n}", {"key": f"key {n * 31 % KEYS}", "number": n}, START_MS + n)
        for n in range(first, end)
    ]
    PIPELINE.push(clients(), "in", records)
    return "let in"


def serve() -> Flask:
    inbox_hints.JointCommits = NotedCommits  # type: ignore[misc]
    app = Flask(__name__)
    app.add_url_rule("/push/<int:first>/<int:end>", view_func=push)
    served = endpoints.serve(app, Registry(PIPELINE))
    endpoints.open_app(served).clients.process_state.get_or_create("streams config", lambda: PACE)
    return served
