"""Each demo with the latencies of the cloud: some forms over HTTP, and totals that must be exact.

python -m benchmarks.cloud_demos
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.books import GIVE_UP_S
from benchmarks.harness.dev_server import Stack, running
from benchmarks.harness.results import Result
from benchmarks.healing.benchmark import TARGET
from benchmarks.healing.loads import Account, AllLoads, Visitor
from models.blog import Comment, post_id
from models.numbers import numbers_run_key
from pipelines.blog import samples
from pipelines.blog.posts import DEMO
from pipelines.blog.samples import SAMPLE_COMMENTS, SAMPLE_POSTS
from pipelines.blog.views import COMMENT_COUNTS
from pipelines.numbers import runs
from pipelines.zeitgeist import playbacks
from pipelines.zeitgeist.pipeline import FEEDS, ZEITGEIST
from pipelines.zeitgeist.playbacks import SPEEDS
from pipelines.zeitgeist.records import records_of
from rollforward.cloud_profile import BUNDLED
from rollforward.runtime import Clients

WRITE_S = 4.0


class Blog:
    """The samples of an empty blog, and the count of comments of each post."""

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.visitor, self.clients = Visitor(stack), clients

    def open(self) -> None:
        """Do nothing, as this load needs no target."""

    def write(self, is_over: threading.Event) -> None:
        self.visitor.send("/blog/new", "/blog/samples", {})

    def account(self) -> Account:
        status = samples.status(self.clients, DEMO)
        if status is None or status.is_running or status.done != SAMPLE_POSTS + SAMPLE_COMMENTS:
            return Account(SAMPLE_COMMENTS, 0, is_still=False)
        posts = [post_id(DEMO, number) for number in range(1, SAMPLE_POSTS + 1)]
        totals = COMMENT_COUNTS.totals(self.clients, posts).values()
        is_counted = sum(total.value for total in totals) == SAMPLE_COMMENTS
        comments = len(Comment.query().fetch(keys_only=True))
        return replace(Account.counted(SAMPLE_COMMENTS, comments), is_still=is_counted)


class Zeitgeist:
    """The sample, ten days of queries, whose records must each count once."""

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.visitor, self.clients = Visitor(stack), clients

    def open(self) -> None:
        """Do nothing, as this load needs no target."""

    def write(self, is_over: threading.Event) -> None:
        form = {"id": secrets.token_hex(16), "sample": "1", "speed": str(SPEEDS[-1])}
        self.visitor.send("/zeitgeist", "/zeitgeist/playbacks", form)

    def account(self) -> Account:
        playback = playbacks.current()
        if playback is None or not playback.is_over:
            return Account(1, 0, is_still=False)
        pushed = sum(
            len(records_of(playback, feed, playback.begin, playback.last)) for feed in FEEDS
        )
        counter = ZEITGEIST.status(self.clients).computations["counter"]
        is_whole = counter.late == counter.dead == 0
        return replace(Account.counted(pushed, counter.records), is_still=is_whole)


class Numbers:
    """A run of all probes."""

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.visitor, self.run_id = Visitor(stack), secrets.token_hex(16)

    def open(self) -> None:
        """Do nothing, as this load needs no target."""

    def write(self, is_over: threading.Event) -> None:
        self.visitor.send("/numbers", "/numbers", {"id": self.run_id})

    def account(self) -> Account:
        run = numbers_run_key(self.run_id).get()
        return Account(1, int(run is not None and runs.is_complete(run)))


def measure(profile: Path) -> Iterator[Result]:
    """Use all demos at once for some seconds; yield the time until each was exact."""
    with running(f"--like={profile}", "--target", TARGET, LOG_LEVEL="WARNING") as stack:
        loads = AllLoads(stack, [Blog, Zeitgeist, Numbers])
        loads.open()
        with loads.writing():
            time.sleep(WRITE_S)
        exact_s = loads.until_exact(time.monotonic())
    for name, seconds in sorted(exact_s.items()):
        versus = "from the end of the writing to exact"
        target_s = GIVE_UP_S - 1
        yield Result(f"cloud.demos.{name}_s", seconds, "s", versus, target_s, at_least=False)


def main() -> int:
    """Measure, and return 1 if a demo is not exact."""
    results = []
    for result in measure(BUNDLED):
        print(result.line(), flush=True)
        results.append(result)
    return int(not all(result.met for result in results))


if __name__ == "__main__":
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    sys.exit(main())
