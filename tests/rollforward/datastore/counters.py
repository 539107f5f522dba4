"""A number that transactions count up, with and without an idempotency guard."""

from __future__ import annotations

from google.cloud import ndb

from tests.infra.world import World


class Tally(ndb.Model):
    """A number to increment."""

    count = ndb.IntegerProperty(indexed=False, default=0)


class Receipt(ndb.Model):
    """The proof that one increment was made."""


def count_up() -> int:
    """Add one without any proof: what a body must not do."""
    tally = Tally.get_by_id("t") or Tally(id="t")
    tally.count += 1
    tally.put()
    count: int = tally.count
    return count


def count_up_once() -> None:
    """Add one, and keep the proof of it in the same commit."""
    if Receipt.get_by_id("r") is None:
        count_up()
        Receipt(id="r").put()


def counted() -> int:
    tally = Tally.get_by_id("t")
    return tally.count if tally else 0


def fail_with(error: Exception) -> None:
    raise error


def no_pause(seconds: float) -> None:
    pass


def break_call(world: World, name: str, kind: str) -> None:
    """Break the first remote call of a name that comes next."""
    world.plan.reset(kind, next_call=name)
