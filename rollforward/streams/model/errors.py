"""Why a stream refuses what it is asked for."""

from __future__ import annotations


class StreamError(Exception):
    """Base class: nothing was changed."""


class BadRecordError(StreamError, ValueError):
    """This cannot be a record, a key, a timer or a state; the text says why."""


class BadLayoutError(StreamError, ValueError):
    """Intervals cannot be split or merged so; the text says why."""


class BackpressureError(StreamError):
    """A source has to wait for those who work on its records, or for another source.

    The same may be pushed again after `retry_after_s`.
    """

    retry_after_s = 1


class TopologyError(StreamError, ValueError):
    """A computation cannot be attached, replaced or detached so, or not now; the text says why."""


class UnreadableStateError(TopologyError):
    """A new version cannot read what is stored; nothing was changed."""


class MissingCodeError(StreamError):
    """This code lacks a version of a computation that runs: other instances of the app have it."""


class WeakError(StreamError, TypeError):
    """A weak computation asks for what has to be durable: a state, a timer, a count."""


class NotIdempotentError(StreamError):
    """A weak computation wrote something else when it worked on the same records again."""


class TooEarlyError(StreamError, ValueError):
    """An output or a timer lies before its input: readers may have closed that time already."""


class UnknownStreamError(StreamError, LookupError):
    """There is no such stream, source or computation here."""
