"""Resource names, projects/P/locations/L/queues/Q/tasks/T, and the short ids of queues.

A queue of the emulator's own place has the id Q on pages and in the control API, a queue of another
place P:L:Q.

Source: cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
"""

import re
from dataclasses import dataclass

from rollforward.local.cloudtasks.protocol import errors

_QUEUE_ID = re.compile(r"[A-Za-z0-9-]{1,100}")
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,500}")
_PARENT = re.compile(r"projects/([A-Za-z0-9:.-]+)/locations/([A-Za-z0-9-]+)")


def is_queue_id(text: str) -> bool:
    """Return whether text may be the last part of a queue's name."""
    return _QUEUE_ID.fullmatch(text) is not None


def parent_of(name: str) -> str:
    """Return the location's name inside a well-formed resource name."""
    return "/".join(name.split("/", 4)[:4])


def project_of(name: str) -> str:
    """Return the project inside a well-formed resource name."""
    return name.split("/", 2)[1]


def queue_of_task(task_name: str) -> str:
    """Return the queue's name inside a well-formed task name."""
    return task_name.partition("/tasks/")[0]


def is_named(queue_name: str, queue_id: str) -> bool:
    """Return whether an id is a queue's: its last part is enough.

    >>> [is_named("projects/p/locations/l/queues/q", text) for text in ("q", "p:l:q", "o:l:q")]
    [True, True, False]
    """
    _, project, _, location, _, queue = queue_name.split("/")
    return queue_id in (queue, f"{project}:{location}:{queue}")


def short(name: str) -> str:
    """Return the last part of a resource name."""
    return name.rpartition("/")[2]


@dataclass(frozen=True)
class Place:
    """The project and location that the emulator serves.

    Attributes:
        is_open: True if it serves all others, too: queues that are given without a place are here.
    """

    project: str
    location: str
    is_open: bool = False

    @property
    def parent(self) -> str:
        """The location's name, the parent of the queues."""
        return f"projects/{self.project}/locations/{self.location}"

    def queue_name(self, queue_id: str) -> str:
        """Return the full name of the queue with this id.

        >>> Place("p", "l").queue_name("q"), Place("p", "l").queue_name("other:m:q")
        ('projects/p/locations/l/queues/q', 'projects/other/locations/m/queues/q')
        """
        place, _, queue = queue_id.rpartition(":")
        project, _, location = place.rpartition(":")
        if not project:
            return f"{self.parent}/queues/{queue_id}"
        return f"{Place(project, location).parent}/queues/{queue}"

    def queue_id(self, queue_name: str) -> str:
        """Return the id of a queue, by which pages and the control API know it.

        >>> Place("p", "l").queue_id("projects/other/locations/m/queues/q")
        'other:m:q'
        """
        _, project, _, location, _, queue = queue_name.split("/")
        is_here = (project, location) == (self.project, self.location)
        return queue if is_here else f"{project}:{location}:{queue}"

    def check_parent(self, parent: str) -> None:
        """Refuse a location that is not this one.

        Raises:
            Refused: PERMISSION_DENIED for another project, INVALID_ARGUMENT for
                another location.
        """
        if parent == self.parent:
            return
        match = _PARENT.fullmatch(parent)
        if match is not None and self.is_open:
            return
        if match is None or match[1] != self.project:
            raise errors.permission_denied(match[1] if match else parent)
        raise errors.invalid(f"Location '{match[2]}' is not served here: use '{self.location}'.")

    def check_new_queue_name(self, name: str, parent: str = "") -> None:
        """Refuse a name under which no queue may be created.

        Args:
            parent: The request's, if it names one.

        Raises:
            Refused: INVALID_ARGUMENT or PERMISSION_DENIED.
        """
        self.check_queue_name(name)
        named = name.partition("/queues/")[0]
        if parent and named != parent:
            raise errors.queue_of_other_parent(name, parent)
        self.check_parent(named)

    def check_queue_name(self, name: str) -> None:
        """Refuse a text that is no queue's name, or the name of another project's queue.

        Raises:
            Refused: INVALID_ARGUMENT or PERMISSION_DENIED.
        """
        parent, separator, queue_id = name.partition("/queues/")
        if parent == self.parent and separator and is_queue_id(queue_id):
            return
        match = _PARENT.fullmatch(parent)
        if match is None or not is_queue_id(queue_id):
            raise errors.queue_name_malformed()
        if match[1] != self.project and not self.is_open:
            raise errors.permission_denied(match[1])

    def check_task_name(self, name: str) -> None:
        """Refuse a text that is no task's name.

        Raises:
            Refused: INVALID_ARGUMENT or PERMISSION_DENIED.
        """
        queue_name, separator, task_id = name.partition("/tasks/")
        if not separator:
            raise errors.task_name_malformed()
        if not _TASK_ID.fullmatch(task_id):
            raise errors.task_id_malformed(task_id)
        self.check_queue_name(queue_name)
