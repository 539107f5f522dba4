"""Signatures of the public names, as a reader of the code would write them."""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from google.cloud import ndb

WIDTH = 88


def of_callable(name: str, value: Any) -> list[str]:
    """Return `def name(...) -> ...`, once for each overload; a class has its constructor."""
    overloads = [] if isinstance(value, type) else typing.get_overloads(inspect.unwrap(value))
    return [_of_one(name, function) for function in overloads or [value]]


def _of_one(name: str, value: Callable[..., Any]) -> str:
    is_class = isinstance(value, type)
    if is_class and issubclass(value, enum.Enum):
        return "\n".join([f"class {name}(Enum)", *(f"    {member.name}" for member in value)])
    if is_class and issubclass(value, ndb.Model):
        return f"class {name}(ndb.Model)"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return f"class {name}"
    if is_class and issubclass(value, BaseException) and value.__init__ is Exception.__init__:
        return f"class {name}"
    parameters = [*_parameters(signature)]
    if is_class and getattr(value, "_is_protocol", False):  # Nobody calls it.
        return f"class {name}"
    if is_class and parameters == ["*args", "**kwargs"]:
        parameters = []  # A protocol's implementation has these until its first instance is made.
    returned = signature.return_annotation
    end = "" if is_class or returned is signature.empty else f" -> {annotation(returned)}"
    keyword = "class" if is_class else "def"
    joined = ", ".join(parameters)
    if getattr(value, "has_optional_clients", False):  # As Python's documentation writes it.
        clients, *others = [text for text in parameters if text != "/"]
        joined = f"[{clients}, ]{', '.join(others)}" if others else f"[{clients}]"
        parameters = [f"[{clients}]", *others]
    line = f"{keyword} {name}({joined}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{keyword} {name}(", *(f"    {text}," for text in parameters), f"){end}"])


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    is_keyword = False
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    for index, parameter in enumerate(parameters):
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            yield "*"
        is_keyword |= parameter.kind is parameter.VAR_POSITIONAL
        text = f"{stars.get(parameter.kind, '')}{parameter.name}"
        is_typed = parameter.annotation is not parameter.empty
        text += f": {annotation(parameter.annotation)}" if is_typed else ""
        if parameter.default is not parameter.empty:
            text += f"{' = ' if is_typed else '='}{default(parameter.default)}"
        yield text
        following = parameters[index + 1 : index + 2]
        is_last_positional = not following or following[0].kind is not parameter.POSITIONAL_ONLY
        if parameter.kind is parameter.POSITIONAL_ONLY and is_last_positional:
            yield "/"


def annotation(value: Any) -> str:
    """Return a type as the code has it, without the modules of its names."""
    if isinstance(value, typing.ForwardRef):
        value = value.__forward_arg__
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text.replace("ndb.", "ndb:")).replace(
        "ndb:", "ndb."
    )


def default(value: Any) -> str:
    """Return a default value, `...` for one that has no short form of its own."""
    if isinstance(value, (types.FunctionType, type)):
        return value.__name__ if value.__name__ != "<lambda>" else "..."
    text = repr(value)
    return text if len(text) <= 40 and "<" not in text and " at 0x" not in text else "..."
