"""Joint commits with a guard left out: what the schedules have to notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rollforward.streams.exchange import ingest
from rollforward.streams.storage import joint_commits
from rollforward.streams.storage.joint_commits import Offer
from rollforward.streams.storage.remote_calls import Commit, Join
from tests.rollforward.streams.scenarios.joining import join_pushes
from tests.rollforward.streams.simulator import joining
from tests.rollforward.streams.simulator.store import Steps, answered

Change = Callable[[Commit, Commit, list[Offer]], None]


def _merging(
    patch: pytest.MonkeyPatch, changed: Callable[[Commit, Commit, list[Offer]], None]
) -> None:
    """Change each joint commit, given that of the worker and the offers."""

    def merge(commit: Commit, offers: Iterable[Offer]) -> Commit:
        joint = joint_commits.merge(commit, offers := list(offers))
        changed(joint, commit, offers)
        return joint

    patch.setattr(joining, "merge", merge)


def lost_rest(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """The rest of a chunk that is consumed in part is not inserted."""
    join_pushes(schedule)

    def changed(joint: Commit, commit: Commit, offers: list[Offer]) -> None:
        chunks = {offer.chunk for offer in offers}
        joint.inserts = [insert for insert in joint.inserts if insert[0] not in chunks]

    _merging(patch, changed)


def lost_inserts(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """What a push sends to other inboxes is not inserted."""
    join_pushes(schedule)

    def changed(joint: Commit, commit: Commit, offers: list[Offer]) -> None:
        sent = {key for offer in offers for key, _ in offer.commit.inserts if key != offer.chunk}
        joint.inserts = [insert for insert in joint.inserts if insert[0] not in sent]

    _merging(patch, changed)


def unguarded_source(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """A joint commit does not compare the row of the source: the push may be committed already."""
    join_pushes(schedule)
    store = schedule.simulation.store

    def changed(joint: Commit, commit: Commit, offers: list[Offer]) -> None:
        own = {key for key, _, _ in commit.puts}
        joint.puts = [
            (key, body, at if key in own else store.rows[key].version)
            for key, body, at in joint.puts
        ]

    _merging(patch, changed)


def believed(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """A push without an answer takes itself for committed."""
    join_pushes(schedule)
    real = ingest._ingest_in_span

    def steps(*args: Any) -> Steps:
        def answer(call: Any) -> Steps:
            if type(call) is not Join:
                return None
            return ((yield call) or [0] * len(call.commit.rows),)

        return answered(real(*args), answer)

    patch.setattr(ingest, "_ingest_in_span", steps)
