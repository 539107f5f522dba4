"""Errors of lanes."""

from __future__ import annotations

from rollforward.tasks.errors import BadArgumentsError, Retry


class BadLaneError(BadArgumentsError):
    """A task that cannot wait in this lane; the text says why."""


class LaneBusyError(Retry):
    """Other deliveries change the key at the same time: the queue repeats this one."""
