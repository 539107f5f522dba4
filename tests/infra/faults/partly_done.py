"""A transaction whose body runs again after its commit, and finds a part of its work done."""

from __future__ import annotations

from collections.abc import Callable

from google.cloud import ndb

from rollforward.datastore.transactions import transact
from tests.infra.world import World


class PartDone(ndb.Model):
    """The proof that the first part is done."""


def run_again(
    world: World, first: Callable[[], object], *others: Callable[[], object], then: bool = False
) -> None:
    """Commit all parts, lose the reply, and run the parts again without the first one.

    Args:
        then: Whether the others belong to the second run alone.
    """
    runs: list[bool] = []

    def body() -> None:
        runs.append(PartDone.get_by_id("first") is None)
        if runs[-1]:
            PartDone(id="first").put()
            first()
        if not (then and runs[-1]):
            for part in others:
                part()

    world.plan.break_next("Commit", "reply-lost", 1)
    transact(body, sleep=lambda seconds: None)
    PartDone(id="first").key.delete()
    assert runs == [True, False]
