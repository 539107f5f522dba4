"""The filter of ListQueues: comparisons of fields, joined by AND.

Source: cloud.google.com/logging/docs/view/advanced_filters. This accepts comparisons joined by AND,
and refuses anything else.
"""

import re
from collections.abc import Callable
from typing import Any

from rollforward.local.cloudtasks.protocol import errors
from rollforward.local.cloudtasks.protocol.messages import Queue, seconds_of

_TERM = re.compile(r'\s*([a-z_A-Z.]+)\s*(<=|>=|!=|=|<|>|:)\s*("(?:[^"\\]|\\.)*"|[^\s"]+)\s*')
_PRESENT = (":", "*")
_STATES = Queue.DESCRIPTOR.fields_by_name["state"].enum_type

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: bool(left == right),
    "!=": lambda left, right: bool(left != right),
    "<": lambda left, right: bool(left < right),
    "<=": lambda left, right: bool(left <= right),
    ">": lambda left, right: bool(left > right),
    ">=": lambda left, right: bool(left >= right),
}


class QueueFilter:
    """A parsed filter; the empty one matches every queue.

    Args:
        queue_type: The class of the queues, whose fields the filter names.
    """

    def __init__(self, text: str, queue_type: Any = Queue) -> None:
        self._terms: list[tuple[str, str, str]] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TERM.match(text, position)
            if match is None:
                raise errors.invalid(f"The filter is not understood at: '{text[position:]}'.")
            self._terms.append((_snake(match[1]), match[2], match[3].strip('"')))
            position = match.end()
            if text.startswith("AND ", position):
                position += len("AND ")
        for path, _, _ in self._terms:
            _value(queue_type(), path)

    def matches(self, queue: Any) -> bool:
        """Return whether a queue meets every comparison."""
        return all(
            _is_there(queue, path)
            if (op, word) == _PRESENT
            else _matches(_value(queue, path), op, word)
            for path, op, word in self._terms
        )


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), name)


def _value(queue: Any, path: str) -> Any:
    """Return a field's value: text, a number, or seconds.

    Raises:
        Refused: INVALID_ARGUMENT: the field does not exist.
    """
    value = queue
    for part in path.split("."):
        fields = getattr(getattr(value, "DESCRIPTOR", None), "fields_by_name", {})
        if part not in fields:
            raise errors.invalid(f"The filter names no field of a queue: '{path}'.")
        value = getattr(value, part)
    if path == "state":
        return _STATES.values_by_number[value].name
    return seconds_of(value) if hasattr(value, "nanos") else value


def _is_there(queue: Any, path: str) -> bool:
    """Return whether a queue has a field, as `field: *` asks."""
    *outer, last = path.split(".")
    for part in outer:
        queue = getattr(queue, part)
    return last in {field.name for field, _ in queue.ListFields()}


def _matches(value: Any, operator: str, word: str) -> bool:
    if isinstance(value, str):
        if operator == ":":
            return word.lower() in value.lower()
        return _COMPARE[operator](value, word)
    if not isinstance(value, int | float):
        raise errors.invalid(f"The filter compares a message with '{word}': only '*' fits one.")
    try:
        number = float(word.removesuffix("s"))
    except ValueError:
        raise errors.invalid(f"The filter compares a number with '{word}'.") from None
    return _COMPARE["=" if operator == ":" else operator](value, number)
