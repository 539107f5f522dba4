"""Envelope: the body of a task that refers to rows, in the place of its arguments.

A task's own arguments are a JSON object whose keys are names of Python, so none begins with "$".
A version of the code without envelopes refuses the body, and the task waits for one that has them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pydantic

from rollforward.runtime.type_adapters import adapter_of
from rollforward.tasks.errors import BadArgumentsError

_MARK = b'{"$rollforward":'
_FORM = re.compile(rb'\{"\$rollforward":(\{[^{}]*\})(?:,"args":(.*))?\}', re.DOTALL)


@dataclass(frozen=True)
class Envelope:
    """The parts of a task's body.

    Attributes:
        args: Its arguments as JSON; None: rows hold them.
        stored: The id of these rows.
        chunks: How many chunks they have.
        handle: The handle by which the task can be cancelled; "": it has none.
    """

    args: bytes | None
    stored: str = ""
    chunks: int = 0
    handle: str = ""

    @property
    def body(self) -> bytes:
        """The body of the task: plain arguments, or references."""
        if not (self.stored or self.handle):
            return self.args or b""
        meta = adapter_of(_Meta).dump_json(_Meta(self.stored, self.chunks, self.handle))
        args = b',"args":' + self.args if self.args is not None else b""
        return _MARK + meta + args + b"}"


@dataclass(frozen=True)
class _Meta:
    stored: str = ""
    chunks: int = 0
    handle: str = ""


def split_envelope(body: bytes) -> Envelope:
    """Return the parts of a body.

    >>> split_envelope(b'{"party": "p1"}').args
    b'{"party": "p1"}'
    >>> split_envelope(Envelope(None, "c0ffee", 3).body)
    Envelope(args=None, stored='c0ffee', chunks=3, handle='')
    >>> split_envelope(Envelope(b'{"party": "}"}', handle="d0d0").body)
    Envelope(args=b'{"party": "}"}', stored='', chunks=0, handle='d0d0')

    Raises:
        BadArgumentsError: it is an envelope of another form.
    """
    if not body.startswith(_MARK):
        return Envelope(body)
    match = _FORM.fullmatch(body)
    if match is None:
        raise BadArgumentsError(f"an envelope has another form: {body!r:.200}")
    try:
        meta = adapter_of(_Meta).validate_json(match[1], strict=True)
    except pydantic.ValidationError as error:
        raise BadArgumentsError(f"an envelope has another form: {error}") from None
    return Envelope(match[2], meta.stored, meta.chunks, meta.handle)
