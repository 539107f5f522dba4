"""Validation of leases: the number of tasks, the duration, and the tag.

The reference has the bounds; the words of the refusals are our own.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2beta2#leasetasksrequest
"""

from dataclasses import dataclass
from typing import Any

from rollforward.local.cloudtasks.protocol import errors
from rollforward.local.cloudtasks.protocol.messages import seconds_of
from rollforward.local.cloudtasks.store.records import PullMessage

MAX_TASKS = 1000
MAX_LEASE_S = 7 * 86400
MAX_TAG_CHARACTERS = 499

_TAG, _OLDEST = "tag=", "tag_function=oldest_tag()"


@dataclass(frozen=True)
class TagFilter:
    """The tags that a lease is for.

    Attributes:
        tag: The only one, None for any.
        is_oldest: The tag of the task that is due first is the only one.
    """

    tag: str | None = None
    is_oldest: bool = False


def tag_filter(text: str) -> TagFilter:
    """Return a parsed filter; the empty one takes every tag.

    >>> tag_filter('tag="a b"')
    TagFilter(tag='a b', is_oldest=False)

    Raises:
        Refused: INVALID_ARGUMENT.
    """
    plain = text.strip()
    if not plain:
        return TagFilter()
    if plain == _OLDEST:
        return TagFilter(is_oldest=True)
    if not plain.startswith(_TAG):
        raise errors.invalid(f"LeaseTasksRequest.filter must be '{_TAG}<my-tag>' or '{_OLDEST}'.")
    tag = plain.removeprefix(_TAG)
    if len(tag) >= 2 and tag[0] == tag[-1] == '"':
        tag = tag[1:-1]
    _check_tag(tag, "LeaseTasksRequest.filter")
    return TagFilter(tag)


def checked_message(message: Any) -> PullMessage:
    """Return the content of a task for a pull queue.

    Raises:
        Refused: INVALID_ARGUMENT.
    """
    _check_tag(message.tag, "PullMessage.tag")
    return PullMessage(message.payload, message.tag)


def _check_tag(tag: str, field: str) -> None:
    if len(tag) > MAX_TAG_CHARACTERS:
        raise errors.invalid(f"The tag of {field} must be less than 500 characters.")


def lease_seconds(duration: Any) -> int:
    """Return for how long a lease is, in whole seconds.

    Raises:
        Refused: INVALID_ARGUMENT.
    """
    seconds = int(seconds_of(duration))
    if not 1 <= seconds <= MAX_LEASE_S:
        raise errors.invalid(f"lease_duration must be between [1s, {MAX_LEASE_S}s].")
    return seconds


def check_count(max_tasks: int) -> None:
    """Refuse a number of tasks that no lease can have.

    Raises:
        Refused: INVALID_ARGUMENT.
    """
    if not 1 <= max_tasks <= MAX_TASKS:
        raise errors.invalid(f"LeaseTasksRequest.max_tasks must be between 1 and {MAX_TASKS}.")
