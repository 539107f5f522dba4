"""Forms of a task's arguments, from their declared types: shown, and read again as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from rollforward.tasks import Task
from rollforward.tasks.errors import BadArgumentsError

MAX_VALUE_CHARS = 20_000
_CHOICES = ("true", "false")


class BadFormError(ValueError):
    """Arguments that cannot be; the text begins with the name of the field."""


@dataclass(frozen=True)
class Field:
    """One argument in a form.

    Attributes:
        type: Its declared type, in words of Python.
        form: text, number, choice or json: how a person types it.
        default: Its default as JSON; None: it has to be given.
        value: The text in the form.
    """

    name: str
    type: str
    form: str
    default: str | None
    value: str

    def read(self, text: str) -> Any:
        """Return the value that was typed.

        Raises:
            BadFormError: it is none of this form.
        """
        if self.form == "text":
            return text.replace("\r\n", "\n")  # Browsers send each line's end so.
        try:
            value = json.loads(text)
            json.dumps(value, allow_nan=False)  # A number like 1e999 is read as infinite.
        except (ValueError, RecursionError):
            example = '["a", 1]' if self.form == "json" else "7"
            raise BadFormError(
                f"{self.name}: {self.type} as JSON is needed, like {example}, not {text!r:.60}"
            ) from None
        return value


def fields_of(task: Task[Any], values: Mapping[str, Any] | None = None) -> list[Field]:
    """Return the fields of a task's arguments, filled in with values or defaults."""
    hints = _hints(task.args)
    fields = []
    for field in dataclasses.fields(task.args):
        hint = hints.get(field.name, Any)
        form, default = _form_of(hint), _default_of(field)
        value = "" if default is None else _typed(form, json.loads(default))
        if values is not None and field.name in values:
            value = _typed(form, values[field.name])
        fields.append(Field(field.name, _name_of(hint), form, default, value))
    return fields


def body_of(task: Task[Any], texts: Sequence[str]) -> bytes:
    """Return the body of a task whose fields hold some texts, checked as a delivery checks it.

    An empty text is the default of a field that has one.

    Raises:
        BadFormError: a field is bad, or there are not as many as the task has.
    """
    fields = fields_of(task)
    if len(texts) != len(fields):
        raise BadFormError(f"value: {len(fields)} fields, not {len(texts)}. Load the form again")
    values = {}
    for field, text in zip(fields, texts, strict=True):
        if not text and field.default is not None:
            values[field.name] = json.loads(field.default)
        elif not text and field.form != "text":
            raise BadFormError(f"{field.name}: a value of type {field.type} is needed")
        else:
            values[field.name] = field.read(text)
    try:
        body = json.dumps(values, ensure_ascii=False).encode()
        task.read(body)
    except UnicodeEncodeError:
        raise BadFormError(f"{field.name}: valid Unicode is needed") from None
    except BadArgumentsError as error:
        raise BadFormError(str(error).removeprefix(f"{task.path}: ")) from None
    return body


def _hints(kind: type[Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):
        return {field.name: field.type for field in dataclasses.fields(kind)}


def _form_of(hint: Any) -> str:
    forms: dict[Any, str] = {str: "text", int: "number", float: "number", bool: "choice"}
    return forms.get(hint, "json")


def _name_of(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _default_of(field: dataclasses.Field[Any]) -> str | None:
    """Return a default as JSON; None: there is none, or JSON cannot hold it."""
    if field.default_factory is not dataclasses.MISSING:
        default: Any = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        default = field.default
    else:
        return None
    try:
        return json.dumps(default, ensure_ascii=False)
    except TypeError:
        return None


def _typed(form: str, value: Any) -> str:
    """Return a value as a person types it."""
    return (
        value
        if form == "text" and isinstance(value, str)
        else json.dumps(value, ensure_ascii=False)
    )
