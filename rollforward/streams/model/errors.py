"""Errors that streams raise to their callers."""

from __future__ import annotations


class StreamError(Exception):
    """Base class: nothing was changed."""


class BadRecordError(StreamError, ValueError):
    """Invalid record, key, timer or state; the message says why."""


class PartlyAcceptedError(BadRecordError):
    """A record of a push cannot be written; others of it were accepted before."""


class BadLayoutError(StreamError, ValueError):
    """Intervals cannot be split or merged like this; the message says why."""


class BackpressureError(StreamError):
    """Backpressure: the source must wait for its readers, or for a slower source.

    The same push may be retried after `retry_after_s`.
    """

    retry_after_s = 1


class TopologyError(StreamError, ValueError):
    """A computation cannot be attached, replaced or detached now; the message says why."""


class UnreadableStateError(TopologyError):
    """A new version cannot read the stored states; nothing was changed."""


class MissingCodeError(StreamError):
    """This app version lacks the code of a running computation; other instances have it."""


class WeakError(StreamError, TypeError):
    """A weak computation asked for durable data: a state, a timer, a count."""


class NotIdempotentError(StreamError):
    """A weak computation wrote different records when it processed the same inputs again."""


class TooEarlyError(StreamError, ValueError):
    """An output or a timer is earlier than its input: readers may have closed that time already."""


class UnknownStreamError(StreamError, LookupError):
    """Unknown stream, source or computation."""
