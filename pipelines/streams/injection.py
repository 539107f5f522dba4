"""How records come in: with the position and the watermark of their source, in one commit.

Whether a record is late is decided here and nowhere else: by the watermark that the same commit
moves. What is late is marked, and so is all that it leads to: no worker has to judge by a watermark
that it read a moment ago.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipelines.streams.bells import Bell
from pipelines.streams.calls import (
    ChangedError,
    Commit,
    Create,
    Fetch,
    Found,
    OutcomeUnknownError,
    Read,
    Steps,
    Wake,
)
from pipelines.streams.environment import Environment
from pipelines.streams.errors import HeldBackError
from pipelines.streams.keys import Target
from pipelines.streams.mail import Mail, ring
from pipelines.streams.percentiles import with_delays
from pipelines.streams.records import FOREVER, check_time, value_text
from pipelines.streams.rows import Head, Interval, Letter, Slab, SourceRow, first_slots
from pipelines.streams.sources import Pulled, PullSource

# A clock of a source may be so far ahead of ours.
MAX_AHEAD_MS = 60_000
MAX_ATTEMPTS = 20
REMEMBERED = 20
MAX_PULLED = 500


class Arrival(NamedTuple):
    """A record that comes in: its id (empty: none is needed), its value, and who reads it."""

    id: str
    text: str
    at: int
    targets: tuple[Target, ...]


@dataclass(frozen=True)
class Offer:
    """What one commit of a source brings.

    Attributes:
        watermark: As the source states it; None: it follows the latest record.
        position: Where the source goes on; only of a `PullSource`.
    """

    stream: str
    process: str
    arrivals: Sequence[Arrival]
    watermark: int | None = None
    position: Any = None


class Injected(NamedTuple):
    """What came of an offer: the source's row as it is then, and who has to be woken."""

    records: int
    late: int
    found: Found
    destinations: Sequence[tuple[str, int]]


def arrival(environment: Environment, stream: str, value: Any, at: int, id_: str = "") -> Arrival:
    """Return a record that comes in, checked.

    Raises:
        BadRecordError: it cannot come in.
    """
    targets = environment.pipeline.graph.route(stream, value)
    return Arrival(id_, value_text(value), check_time(at), targets)


def inject(environment: Environment, offer: Offer) -> Steps[Injected]:
    """Let records in, and wake their readers; return when the records are durable.

    Raises:
        ChangedError: too many others were faster.
    """
    injected = yield from let_in(environment, offer)
    try:
        yield from ring(environment, injected.destinations, tick=True)
    except Exception as error:  # What was let in stays in: the sweep wakes them, too.
        environment.complain(f"{environment.pipeline.name} is woken by its sweep: {error}")
    return injected


def let_in(
    environment: Environment, offer: Offer, expected: Found | None = None
) -> Steps[Injected]:
    """Let records in, and wake nobody.

    What this process has read or written last is not read again: if somebody else has written
    since, the commit fails, and the next attempt reads.

    Args:
        expected: The row that the offer follows from; None: whatever it is.

    Raises:
        ChangedError: the row is not the expected one, or too many others were faster.
        HeldBackError: the source has to wait; nothing was let in.
    """
    id_, key = environment.new_id(), environment.names.source(offer.stream, offer.process)
    plan: _Plan | None = None
    for _ in range(MAX_ATTEMPTS):
        head, found, read_ms = environment.memories.pop(key, (None, None, -FOREVER))
        # What the head says of intervals, and of who has to wait, may be as old as for workers.
        age_ms = environment.elapsed_ms() - read_ms
        is_other = expected is not None and found is not None and found.version != expected.version
        if is_other or not 0 <= age_ms <= environment.pace.watermark_ms:
            read_ms = environment.elapsed_ms()
            head, found = yield Read([environment.names.head, key])
        if not is_complete(environment, head):
            yield from read_head(environment)
            continue
        if found is not None and found.body.layout > head.body.layout:
            continue  # It was read before the head has changed.
        if plan is not None and found is not None and id_ in found.body.last:
            return plan.injected(found)  # The reply to the earlier attempt was lost.
        if expected is not None and (found is None or found.version != expected.version):
            raise ChangedError
        # A source that is pulled for the first time is let in: whoever lets it go knows of it then.
        is_first = expected is not None and not expected.body.seq
        if plan is None and offer.arrivals and not is_first:
            _check_not_held(head.body, offer)
        plan = _Plan(environment, offer, head, found, id_)
        try:
            versions = yield plan.commit
        except (ChangedError, OutcomeUnknownError):
            continue
        found = Found(plan.row, versions[plan.was.is_out])
        if not plan.was.is_out:
            environment.memories[key] = head, found, read_ms
        return plan.injected(found)
    raise ChangedError


def _check_not_held(head: Head, offer: Offer) -> None:
    why = head.held.get(f"{offer.stream}:{offer.process}")
    if why is not None:
        raise HeldBackError(f"{offer.stream} has to wait: {why}")


class _Plan:
    """One attempt to let an offer in."""

    def __init__(
        self, environment: Environment, offer: Offer, head: Found, found: Found | None, id_: str
    ) -> None:
        self.environment, self.offer = environment, offer
        self.mail = Mail(environment, head.body)
        self.commit = Commit()
        self.was: SourceRow = found.body if found is not None else SourceRow(is_out=True)
        floor = self.was.watermark
        if self.was.is_out:
            # The watermark has gone on without it. It may not while this one comes back.
            floor = max(floor, head.body.sources.get(offer.stream, 0))
            self.commit.puts.append((environment.names.head, head.body, head.version))
        late = self._send(floor)
        self.row = self._row(floor, late, id_)._replace(layout=head.body.layout)
        key = environment.names.source(offer.stream, offer.process)
        if found is None:
            self.commit.inserts.append((key, self.row))
        else:
            self.commit.puts.append((key, self.row, found.version))
        self.commit.inserts += self.mail.inserts()

    def injected(self, found: Found) -> Injected:
        """Return what has come of it, with the source's row as it is now."""
        late = self.row.late - self.was.late
        return Injected(len(self.offer.arrivals), late, found, self.mail.destinations)

    def _send(self, floor: int) -> int:
        late = 0
        for each in self.offer.arrivals:
            is_late = each.at < floor
            late += is_late
            for target in each.targets:
                letter = Letter(target.key, each.at, self.offer.stream, each.id, each.text)
                self.mail.send(target, letter, is_late=is_late)
        return late

    def _row(self, floor: int, late: int, id_: str) -> SourceRow:
        was, offer, now_ms = self.was, self.offer, self.environment.now_ms()
        latest = max([was.latest, *(each.at for each in offer.arrivals)])
        latest = max(was.latest, min(latest, now_ms + MAX_AHEAD_MS))
        reached = latest - self.environment.pipeline.disorder_ms(offer.stream)
        if offer.watermark is not None:
            reached = min(offer.watermark, FOREVER)
        return SourceRow(
            watermark=max(floor, reached),
            latest=latest,
            seen_ms=now_ms,
            last=(*was.last[1 - REMEMBERED :], id_),
            seq=was.seq + 1,
            records=was.records + len(offer.arrivals),
            late=was.late + late,
            dead=was.dead + self.mail.dead,
            position=offer.position,
            delays=self._delays(),
        )

    def _delays(self) -> tuple[int, ...]:
        if not self.environment.pipeline.percentiles:
            return ()
        times = [each.at for each in self.offer.arrivals]
        return with_delays(self.was.delays, self.was.latest, times)


# Pull


def pull(environment: Environment, stream: str) -> Steps[bool]:
    """Read a pull source for some time, or until it has to wait; return whether it has ended.

    Raises:
        ChangedError: somebody else has read it meanwhile. They may have died since: come again.
    """
    source, began_ms = environment.pipeline.source(stream), environment.elapsed_ms()
    assert isinstance(source, PullSource)
    key = environment.names.source(stream, "")
    yield from read_head(environment)
    [found] = yield Read([key])
    bell = Bell(environment)
    while found.body.watermark < FOREVER:
        pulled = yield Fetch(stream, found.body.position, MAX_PULLED)
        is_idle = not _has_more(pulled, found)
        if is_idle and source.poll is None:
            break
        try:
            offer = _offer(environment, stream, pulled)
            injected = yield from let_in(environment, offer, found)
        except ChangedError:
            yield from bell.ring()
            raise
        except HeldBackError:
            break  # The tick that lets it go has it read again.
        found = injected.found
        bell.owe(injected.destinations, tick=True)
        yield from bell.ring_in_time()
        if is_idle or environment.elapsed_ms() - began_ms > environment.pace.run_ms:
            delay_s = source.poll.total_seconds() if is_idle and source.poll else 0.0
            yield Create([pull_wake(environment, stream, found.body.seq, delay_s=delay_s)])
            break
    yield from bell.ring()
    return found.body.watermark >= FOREVER  # type: ignore[no-any-return]


def _has_more(pulled: Pulled, found: Found) -> bool:
    """Return whether a read has come further, if only over what is no record."""
    has_moved = value_text(pulled.position) != value_text(found.body.position)
    return bool(pulled.records) or pulled.is_over or has_moved


def pull_wake(
    environment: Environment, stream: str, seq: int, *why: str | int, delay_s: float = 0
) -> Wake:
    """Return the task that goes on reading a source.

    Args:
        why: Makes it another task than the one that reading itself asks for: that one may have run
            already, and have found nothing.
    """
    return Wake((stream, -1), (environment.pipeline.name, stream, seq, *why), delay_s)


def _offer(environment: Environment, stream: str, pulled: Pulled) -> Offer:
    arrivals = [arrival(environment, stream, value, at) for value, at in pulled.records]
    watermark = FOREVER if pulled.is_over else pulled.watermark
    return Offer(stream, "", arrivals, watermark, pulled.position)


# The first rows


def read_head(environment: Environment) -> Steps[Found]:
    """Read the head of a pipeline; make what rows are missing, of it and of its computations.

    Raises:
        ChangedError: again and again others were faster, or it is not known what became of that.
    """
    pipeline, names = environment.pipeline, environment.names
    for _ in range(MAX_ATTEMPTS):
        [head] = yield Read([names.head])
        if is_complete(environment, head):
            return head  # type: ignore[no-any-return]
        body = head.body if head is not None else Head()
        new = [name for name in pipeline.computations if name not in body.intervals]
        slots = {name: first_slots(pipeline.intervals_of(name)) for name in new}
        after = body._replace(intervals={**body.intervals, **slots})
        commit = Commit()
        for name, los in slots.items():
            for lo, hi in zip(los, [*los[1:], 2**16], strict=True):
                commit.inserts.append((names.interval(name, lo), Interval(hi, slabs=(Slab(lo),))))
        if head is None:
            commit.inserts.append((names.head, after))
            commit.inserts += _source_rows(environment)
        else:
            commit.puts.append((names.head, after, head.version))
        with contextlib.suppress(ChangedError, OutcomeUnknownError):
            yield commit
    raise ChangedError


def is_complete(environment: Environment, head: Found | None) -> bool:
    """Return whether a pipeline has all rows that it begins with."""
    known = head.body.intervals if head is not None else ()
    return all(name in known for name in environment.pipeline.computations)


def _source_rows(environment: Environment) -> list[tuple[Any, SourceRow]]:
    """Return the rows of all processes that are expected: none is left out from the start."""
    seen_ms = environment.now_ms()
    return [
        (environment.names.source(stream, process), SourceRow(seen_ms=seen_ms))
        for stream, source in environment.pipeline.sources.items()
        for process in source.processes
    ]
