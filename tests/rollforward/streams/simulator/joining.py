"""Pushes of a simulation that offer their commits to workers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rollforward.streams.storage.joint_commits import Offer, merge, offered, versions_in
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Key,
    Scan,
    StoredRow,
    UnworkableError,
)
from rollforward.streams.storage.schema import CHUNK, is_late
from tests.rollforward.streams.simulator.accidents import Process

MAX_JOINING_MS = 200


class Joining:
    """The offers that are open.

    Attributes:
        is_on: Pushes make offers.
    """

    def __init__(self, simulation: Any, seed: int) -> None:
        self.simulation = simulation
        self.is_on = False
        self.random = random.Random(f"{seed} joins")  # It changes nothing else of a schedule.
        self.offers: dict[int, tuple[Offer, Process]] = {}
        self.taken: set[int] = set()  # Tokens of those that workers have in their bundles.

    def offer(self, process: Process, commit: Commit) -> None:
        """Let a push wait for a worker to join it, for some time: then it commits by itself.

        The worker may commit it nevertheless, however late, as that of another process may.
        """
        in_time = [key for key, _ in commit.inserts if key.kind == CHUNK and not is_late(key.name)]
        process.ready_ms = self.simulation.now_ms + self.random.randrange(MAX_JOINING_MS)
        if in_time:
            process.joining = offer = Offer(commit, self.random.choice(in_time))
            self.offers[offer.token] = offer, process

    def with_offers(
        self, chunks: list[tuple[str, StoredRow]], call: Scan
    ) -> list[tuple[str, StoredRow]]:
        """Return chunks of an inbox, and some of those that are offered to it."""
        names = {name for name, _ in chunks}
        found = [
            (offer.chunk.name, offer.row())
            for offer, _ in self.offers.values()
            if call.low <= offer.chunk.name < call.high
            and offer.chunk.name not in names
            and self.random.random() < 0.7
        ]
        found = found[: max(0, call.limit - len(chunks))]
        self.taken.update(row.version for _, row in found)
        return sorted([*chunks, *found], key=lambda chunk: chunk[0])

    def kill_taken(self) -> None:
        """Kill the pushes whose records a killed worker had: they are of the same process."""
        for token in self.taken & self.offers.keys():
            offer, push = self.offers.pop(token)
            if push.joining is offer:
                self.simulation.kill(push)

    def commit(self, commit: Commit) -> list[int]:
        """Commit a bundle with the pushes that have joined it."""
        tokens = offered(commit)
        joined = [self.offers.pop(token) for token in tokens if token in self.offers]
        offers, given = [offer for offer, _ in joined], dict[Key, int]()
        try:
            if len(offers) < len(tokens):
                raise ChangedError
            given = self._commit_with(offers, commit)
        except UnworkableError as error:
            raise ChangedError from error
        finally:
            for offer, process in joined:
                if process.joining is offer:
                    process.answer = versions_in(offer.commit, given) if given else None
                    process.ready_ms = self.simulation.now_ms
        return versions_in(commit, given)

    def _commit_with(self, offers: Sequence[Offer], commit: Commit) -> dict[Key, int]:
        """Return the versions of all rows. The pushes and the bundle are judged one after another,
        as if the bundle had followed at once."""
        store = self.simulation.store
        joint, judge = merge(commit, offers), store.on_commit
        touched = [*(key for key, _, _ in joint.puts), *(key for key, _ in joint.deletes)]
        before = {key: store.rows[key] for key in touched if key in store.rows}
        store.on_commit = lambda commit, before: None
        try:
            versions = store.commit(joint)
        finally:
            store.on_commit = judge
        self.simulation.counts["joint commits"] += 1
        for offer in offers:
            judge(offer.commit, {key: before[key] for key, _, _ in offer.commit.puts})
        own = {key for key, _, _ in commit.puts} | {key for key, _ in commit.deletes}
        rows = {key: row for key, row in before.items() if key in own}
        judge(commit, rows | {offer.chunk: offer.row() for offer in offers})
        return dict(zip([key for key, _ in joint.rows], versions, strict=True))
