"""The ids of tasks whose callers chose none, made of their sequences and back."""

from rollforward.local.cloudtasks.protocol.names import short

# Odd, so that multiplying by it maps the sequences one to one onto ids that
# look random and spread over the whole range, as the service's do.
_FACTOR = 0x9E3779B97F4A7C15
BITS = 64
_MAX_DIGITS = len(str(2**BITS - 1))
_INVERSE = pow(_FACTOR, -1, 2**BITS)
_MAX_SEQUENCE = 2**63 - 1


class TaskIds:
    """The ids of one store.

    Args:
        salt: Makes them differ from other stores' ids.
    """

    def __init__(self, salt: int) -> None:
        self._salt = salt

    def id_of(self, sequence: int) -> int:
        """Return the id of the task with this sequence."""
        return ((sequence ^ self._salt) * _FACTOR) % 2**BITS

    def sequence_of(self, name: str) -> int:
        """Return the sequence that a task of this name has if its id was made here, or 0.

        >>> ids = TaskIds(salt=5)
        >>> ids.sequence_of(f"projects/p/locations/l/queues/q/tasks/{ids.id_of(7)}")
        7
        """
        task_id = short(name)
        is_number = task_id.isascii() and task_id.isdecimal()
        # int() refuses thousands of digits.
        if not is_number or len(task_id) > _MAX_DIGITS or int(task_id) >= 2**BITS:
            return 0
        sequence = ((int(task_id) * _INVERSE) % 2**BITS) ^ self._salt
        return sequence if sequence <= _MAX_SEQUENCE else 0
