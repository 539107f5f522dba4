"""Functions and names of the original `deferred` that cannot be kept, and code to replace them.

The original took all that pickle takes: methods with their objects, classes, instances. A declared
task takes a function of a module, and its arguments are JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from google.cloud import ndb

from rollforward.compat import options
from rollforward.tasks import BadArgumentsError, Task
from rollforward.tasks.parameters import Parameters

FORM = """write a function at the top of a module, with typed parameters, and register it:
    @deferred.deferrable
    def send(user_id: int, subject: str = "") -> None: ...

    serve = rf.serve(app, send)"""
NAMES = {
    "Handler": "rf.serve(app, ...) mounts the endpoint of deferred calls",
    "TaskHandler": "rf.serve(app, ...) mounts the endpoint of deferred calls",
    "application": "rf.serve(app, ...) mounts the endpoint of deferred calls",
    "invoke_member": "write a function that gets the object by its key and calls the method",
    "run": "nothing is unpickled; call the function",
    "run_from_datastore": "put a large argument into an entity, and pass its id",
    "serialize": "nothing is pickled; function.bind(...) makes one value of a call",
    "set_log_level": "write logging.getLogger('rollforward').setLevel(...)",
}


def of_callable(function: object) -> str:
    """Return why an object cannot be deferred, and what to write instead."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    if isinstance(function, Task):
        return f"{function.function} is a task of its own: write .enqueue(...) with its arguments"
    if problem := _error_of(function):
        return f"{name} cannot be deferred: {problem}; {FORM}"
    return f"{name} must be declared before it is deferred: {FORM}"


def check_function(function: Any) -> None:
    """Check that an object is a function that deliveries can find.

    Raises:
        TypeError: it is none; the text says what to write.
    """
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    problem = _error_of(function) or _error_of_parameters(function)
    if problem:
        raise TypeError(f"{name} cannot be deferred: {problem}; {FORM}")


def check_types(function: Callable[..., object], args: Any) -> None:
    """Check that no argument of a function is an entity or a key, or the clients.

    Raises:
        TypeError: one is.
    """
    parameters = list(inspect.signature(function).parameters)
    count = len(dataclasses.fields(args)) if issubclass(args, Parameters) else 1
    if len(parameters) > count:
        raise TypeError(
            f"{function.__qualname__}: `{parameters[0]}` cannot be an argument of a deferred call: "
            "call rf.clients() in the function"
        )
    for field in dataclasses.fields(args):
        for kind in _kinds_in(field.type):
            if issubclass(kind, ndb.Key | ndb.Model):
                raise TypeError(
                    f"{function.__qualname__}: `{field.name}` cannot be a {kind.__name__}, which "
                    "would be pickled: take its id, as `user_id: int`, or `key.urlsafe()` as a "
                    "str, and get the entity in the function"
                )


def only_argument(
    function: Callable[..., object], owner: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object:
    """Return the argument of a function that takes one dataclass.

    Raises:
        BadArgumentsError: the call has other arguments.
    """
    try:
        call = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise BadArgumentsError(f"{owner}: {error}") from error
    call.apply_defaults()
    [argument] = call.arguments.values()
    return argument


def of_name(module: str, name: str) -> str:
    """Return what to write instead of a name that the original module has."""
    if name in NAMES:
        return f"deferred.{name} is gone: {NAMES[name]}"
    return f"module {module!r} has no attribute {name!r}"


def _error_of(function: object) -> str:
    """Return why an object is no function of a module; "" if it is one."""
    if isinstance(function, types.MethodType | staticmethod | classmethod):
        return "a method would need its object pickled; take the object's id, and get it"
    if isinstance(function, type):
        return "a class is not a function"
    if isinstance(function, functools.partial):
        return "a partial has arguments that would be pickled; pass them to defer"
    if isinstance(function, types.BuiltinFunctionType):
        return "a built-in function has no typed parameters; call it in a function of yours"
    if not callable(function):
        return "it is not a function, or was called: write defer(send, 7), not defer(send(7))"
    if not isinstance(function, types.FunctionType):
        return "an object that can be called would be pickled"
    if function.__name__ == "<lambda>":
        return "a lambda has no name, by which its task would find it"
    if "<locals>" in function.__qualname__:
        return "a function in a function is made anew by each call, and no registry has it"
    return ""


def _error_of_parameters(function: types.FunctionType) -> str:
    parameters = list(inspect.signature(function).parameters.values())
    if "." in function.__qualname__:
        return "a method would need its object pickled; take the object's id, and get it"
    for parameter in parameters:
        if parameter.name in (*options.NAMES, *options.GONE):
            return f"`{parameter.name}` is an option of defer, which the function would never get"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return f"`{parameter.name}` must be one argument, not any number of them"
        if parameter.annotation is parameter.empty:
            return f"`{parameter.name}` must have a type, by which calls are checked"
    return ""


def _kinds_in(hint: Any) -> Iterator[type]:
    """Return the classes in a type: of `list[ndb.Key] | None` list, Key and None's."""
    origin = getattr(hint, "__origin__", hint)
    if isinstance(origin, type):
        yield origin
    for part in get_args(hint):
        yield from _kinds_in(part)
