"""Ticks that read what has changed, with a rule left out: what the schedules have to notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from rollforward.streams.exchange import sent
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.remote_calls import StoredRow
from rollforward.streams.storage.schema import Head, Interval, Sent, SourceRow
from rollforward.streams.watermarks import cut_reader, following
from tests.rollforward.streams.scenarios.full_pipeline import Mixed
from tests.rollforward.streams.scenarios.growing import Reshaped
from tests.rollforward.streams.simulator.schedules import Schedule


class Plant(NamedTuple):
    """A variant, the schedules that are to notice it, and from which seed on."""

    variant: Callable[[pytest.MonkeyPatch], None]
    kind: type[Any] = Schedule
    old_machine: bool = False
    first: int = 0


def source_notes_no_place(patch: pytest.MonkeyPatch) -> None:
    """A push says that it has sent nowhere."""
    _note_no_place(patch, SourceRow)


def worker_notes_no_place(patch: pytest.MonkeyPatch) -> None:
    """A worker says that it has sent nowhere."""
    _note_no_place(patch, Interval)


def _note_no_place(patch: pytest.MonkeyPatch, kind: type[Any]) -> None:
    real = sent.with_sent

    def noted(environment: Any, head: Any, before: Any, after: Any, rows: Any) -> Any:
        return real(environment, head, before, after, () if isinstance(after, kind) else rows)

    patch.setattr(sent, "with_sent", noted)


def foreign_commits_count_as_none(patch: pytest.MonkeyPatch) -> None:
    """A note is taken for complete, whoever has written the row since."""
    real = following.sent_since

    def since(before: StoredRow | None, now: StoredRow) -> Any:
        note = now.body.sent or Sent()
        body = now.body._replace(sent=note._replace(seq=now.body.seq))
        return real(before, StoredRow(body, now.version))

    patch.setattr(following, "sent_since", since)


def note_goes_on_after_foreign_commits(patch: pytest.MonkeyPatch) -> None:
    """A note that misses commits of other code is continued, and not begun anew."""
    real = sent.with_sent

    def noted(environment: Any, head: Any, before: Any, after: Any, rows: Any) -> Any:
        note = (before.sent or Sent())._replace(seq=before.seq)
        return real(environment, head, before._replace(sent=note), after, rows)

    patch.setattr(sent, "with_sent", noted)


def full_note_is_complete(patch: pytest.MonkeyPatch) -> None:
    """A note drops its oldest places, and does not say so."""
    patch.setattr(sent, "MAX_PLACES", 1)
    real = sent._bounded
    patch.setattr(sent, "_bounded", lambda note: real(note)._replace(since=note.since))


def timers_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """An interval whose timers are due has stayed as it was."""
    _active_without(patch, due=NEVER)


def clock_does_not_count(patch: pytest.MonkeyPatch) -> None:
    """An interval whose processing-time timers are due has stayed as it was."""
    _active_without(patch, processing_due=NEVER)


class _Body(NamedTuple):
    owner: str
    due: int
    processing_due: int


def _active_without(patch: pytest.MonkeyPatch, **fields: Any) -> None:
    real = following._active

    def active(environment: Any, head: Head, view: Any) -> Any:
        rows = {
            place: StoredRow(
                _Body(row.body.owner, row.body.due, row.body.processing_due)._replace(**fields),
                row.version,
            )
            for place, row in view.intervals.items()
        }
        return real(environment, head, view._replace(intervals=rows))

    patch.setattr(following, "_active", active)


def records_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An inbox that had records is not looked into again."""
    real = cut_reader.last_view

    def without(environment: Any) -> Any:
        view = real(environment)
        return view and view._replace(pending=frozenset())

    patch.setattr(cut_reader, "last_view", without)


def view_of_a_later_tick(patch: pytest.MonkeyPatch) -> None:
    """A tick follows what another one beside it has read at a later moment."""
    real = cut_reader.read_changes

    def changes(environment: Any, cut: Any, view: Any, *others: Any) -> Any:
        return (yield from real(environment, cut, following.last_view(environment), *others))

    patch.setattr(cut_reader, "read_changes", changes)


def interval_is_not_read_with_its_inbox(patch: pytest.MonkeyPatch) -> None:
    """What was taken out of an inbox is neither there nor in what its worker has kept."""

    def only_active(self: Any, places: Any) -> Any:
        active = {*following._active(self._environment, self._cut.head.body, self._view)}
        rows = yield from real(self, [place for place in places if place in active])
        self._read.update(places)
        return rows

    real = following._Following._read_rows
    patch.setattr(following._Following, "_read_rows", only_active)


def layouts_are_the_same(patch: pytest.MonkeyPatch) -> None:
    """What a tick knows of the intervals of before a split is used after it."""
    _without_comparing(patch, "layout_version", "intervals")


def replays_send_nothing(patch: pytest.MonkeyPatch) -> None:
    """A dead letter that comes back to its inbox is not looked for."""
    _without_comparing(patch, "replays")


def _without_comparing(patch: pytest.MonkeyPatch, *fields: str) -> None:
    patch.setattr(following, "SAME", [name for name in following.SAME if name not in fields])


def retired_inboxes_are_left(patch: pytest.MonkeyPatch) -> None:
    """Inboxes that a split has retired are not looked into."""
    real = following._can_follow
    patch.setattr(
        following,
        "_can_follow",
        lambda environment, head: real(environment, head._replace(retired={})),
    )


VARIANTS = [
    Plant(source_notes_no_place),
    Plant(worker_notes_no_place),
    Plant(foreign_commits_count_as_none, old_machine=True),
    Plant(note_goes_on_after_foreign_commits, old_machine=True),
    Plant(full_note_is_complete),
    Plant(timers_do_not_count),
    Plant(clock_does_not_count, Mixed),
    Plant(records_are_forgotten),
    Plant(view_of_a_later_tick, first=942),
    Plant(interval_is_not_read_with_its_inbox),
    Plant(layouts_are_the_same, Reshaped, first=39),
    Plant(replays_send_nothing, Mixed),
    Plant(retired_inboxes_are_left, Reshaped),
]
