"""Arguments of tasks and jobs: a dataclass that travels as JSON, checked at both ends."""

from __future__ import annotations

from typing import Generic, TypeVar

import pydantic
import pydantic_core

from rollforward.runtime.type_adapters import json_of
from rollforward.tasks.errors import BadArgumentsError

A = TypeVar("A")


class ArgumentsCodec(Generic[A]):
    """Writes the arguments of one task or job, and reads them again.

    Args:
        owner: Prefix of error messages: the task or job.
        kind: Their dataclass.
    """

    def __init__(self, owner: str, kind: type[A]) -> None:
        self._owner = owner
        self._kind = kind
        self._adapter = pydantic.TypeAdapter(kind)

    def dump(self, args: A) -> bytes:
        """Return arguments as JSON.

        Python checks no field of a dataclass: `Raise(percent="5")` is made without a word.

        Raises:
            BadArgumentsError: no delivery could read them; the text names field and types.
        """
        if type(args) is not self._kind:  # A subclass would lose its class, and its own fields.
            form = getattr(self._kind, "__form__", self._kind.__name__)
            raise BadArgumentsError(
                f"{self._owner} takes {form}, not {type(args).__name__}: {args!r:.100}"
            )
        try:
            body = json_of(self._adapter, args)
        except pydantic_core.PydanticSerializationError as error:
            raise BadArgumentsError(f"{self._owner}: {error}") from None
        self.read(body)
        return body

    def args_json(self, args: A) -> str:
        """Return arguments as JSON, without fields that have their default."""
        return self._adapter.dump_json(args, exclude_defaults=True, warnings=False).decode()

    def read(self, body: bytes) -> A:
        """Return the arguments in a body.

        Raises:
            BadArgumentsError: it is not JSON, or not of this type.
        """
        try:
            args: A = self._adapter.validate_json(body, strict=True)
        except pydantic.ValidationError as error:
            complaints = "; ".join(map(_error_text, error.errors(include_url=False)))
            raise BadArgumentsError(f"{self._owner}: {complaints}") from None
        return args


def _error_text(error: pydantic_core.ErrorDetails) -> str:
    """Describe the error of one field; a wrong type is named."""
    field = ".".join(map(str, error["loc"])) or "body"
    is_of_type = error["type"].endswith("_type") and error["loc"]
    actual = f", not {type(error['input']).__name__}" if is_of_type else ""
    return f"{field}: {error['msg']}{actual}"
