"""Forms of a task's function: one dataclass of arguments, or plain typed parameters."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, get_type_hints

from rollforward.app_code import run_app, runs_when_called
from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import MessageLane
from rollforward.runtime.process.current import current_clients
from rollforward.runtime.process.optional_clients import are_clients
from rollforward.tasks.errors import BadArgumentsError

P = ParamSpec("P")
T = TypeVar("T")
TaskFunction = Callable[[Clients, Any], object]

_FORM = """declare a task in one of these forms, the last with a dataclass of its arguments:
    @task(queue="default")
    def ship(order: str, is_express: bool = False) -> None: ...
    @task(queue="default")
    def ship(clients: Clients, order: str, is_express: bool = False) -> None: ...
    @task(queue="default")
    def ship(clients: Clients, args: Ship) -> None: ..."""
ENQUEUE_OPTIONS = ("name", "delay_s", "at", "max_attempts", "lane")
# A first parameter without a type gets the clients if it is called so.
_CLIENTS_NAMES = frozenset({"clients", "_clients", "_"})


class Parameters(Generic[P]):
    """Arguments of a task with plain parameters: its dataclass extends this.

    Attributes:
        __signature_of_task__: The parameters of the task's function, without the clients.
        __form__: Code that makes these arguments, for error messages.
    """

    __signature_of_task__: ClassVar[inspect.Signature]
    __form__: ClassVar[str]


def bound(
    kind: type[Parameters[P]], owner: str, args: Sequence[Any], options: Mapping[str, Any]
) -> Parameters[P]:
    """Return the arguments of a call.

    Raises:
        BadArgumentsError: the function has other parameters.
    """
    try:
        call = kind.__signature_of_task__.bind(*args, **options)
    except TypeError as error:
        raise BadArgumentsError(f"{owner}: {error}") from error
    return kind(**call.arguments)


def with_clients(
    args: tuple[Any, ...], count: int | None = None, form: str = ""
) -> tuple[Any, tuple[Any, ...]]:
    """Return the clients of a call, and its other arguments: the first one, or the current ones.

    Args:
        count: The number of the other arguments; None: any.
        form: The beginning of the error if the number is another one.

    Raises:
        BadArgumentsError: the number of arguments is another one.
        NoClientsError: none were passed, and neither a request nor a task runs here.
    """
    is_passed = len(args) != count and bool(args) and are_clients(args[0])
    if count is not None and len(args) != count + is_passed:
        hint = "behind the clients if those are passed"
        raise BadArgumentsError(f"{form}, {hint}, got {args!r:.200}")
    return (args[0], args[1:]) if is_passed else (current_clients(), args)


def bound_call(
    kind: type[Parameters[P]], owner: str, args: Sequence[Any], options: Mapping[str, Any]
) -> Parameters[P]:
    """Return the arguments of a call of `enqueue`, which takes no option with them.

    Raises:
        BadArgumentsError: as of `bound`, with what to write if an option was meant.
    """
    try:
        return bound(kind, owner, args, options)
    except BadArgumentsError as error:
        if meant := [name for name in ENQUEUE_OPTIONS if name in options]:
            raise BadArgumentsError(
                f"{error}. With an option, bind the arguments: "
                f".enqueue(task.bind(...), {meant[0]}=...)"
            ) from error
        raise


def check_options(owner: str, options: Mapping[str, Any]) -> None:
    """Check that `enqueue` has these options.

    Raises:
        TypeError: it lacks one.
    """
    for name in options:
        if name not in ENQUEUE_OPTIONS:
            names = ", ".join(ENQUEUE_OPTIONS)
            raise TypeError(f"{owner}: enqueue has the options {names}, got {name}")


def lane_key(lane: MessageLane) -> MessageLane:
    """Return the key of a lane, checked: a lane without a key is easily written in its place.

    Raises:
        BadArgumentsError: it is none.
    """
    if not hasattr(lane, "add_in_transaction"):
        raise BadArgumentsError(
            f'lane must be a key of a lane, as BY_USER("ada"), got {lane!r:.100}'
        )
    return lane


def form_of(
    function: Callable[..., object], leading: type[Any] = Clients, form: str = _FORM
) -> tuple[type[Any], TaskFunction]:
    """Return the type of a task's arguments, and the work that takes them.

    Args:
        leading: The type of a first parameter that is no argument. A task may do without it.
        form: Code that shows how to declare it, for error messages.

    Raises:
        TypeError: the function does not have the form of a task.
    """
    name = check_plain(function, form)
    declared = list(inspect.signature(function).parameters.values())
    hints = hints_of(function, f"the task; {form}", leading)
    takes_first = bool(declared) and _takes(declared[0].name, hints, leading)
    if leading is not Clients and not takes_first:
        raise TypeError(f"{name}: its first parameter must be a {leading.__name__}; {form}")
    parameters = declared[1:] if takes_first else declared
    work = _to_its_end(function if takes_first else without_clients(function))
    if len(parameters) == 1 and parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        args = hints.get(parameters[0].name)
        if isinstance(args, type) and dataclasses.is_dataclass(args):
            return args, work
    kind = _parameters_type(name, function, parameters, hints, form)
    return kind, _unpacking(kind, work)


def _takes(name: str, hints: Mapping[str, Any], leading: type[Any]) -> bool:
    """Return whether a function's first parameter is for the clients, or the like."""
    if leading is Clients:
        return is_for_clients(name, hints.get(name))
    return hints.get(name) is leading


def is_for_clients(name: str, kind: object) -> bool:
    """Return whether a function's first parameter, of some type or None, is for the clients."""
    return kind is Clients or (kind is None and name in _CLIENTS_NAMES)


def without_clients(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function with a first parameter for the clients, which it is not passed."""

    @functools.wraps(function)
    def work(clients: Clients, /, *args: Any, **options: Any) -> T:
        return function(*args, **options)

    return work


def _to_its_end(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function, which as a tasklet of ndb would return before it has ended."""

    @functools.wraps(function)
    def work(*args: Any, **options: Any) -> object:
        return run_app(function, *args, **options)

    return work


def declared_name(function: Callable[..., object]) -> str:
    """Return the default name of a declaration: its function's, with dashes."""
    return function.__name__.strip("_").replace("_", "-")


def check_plain(function: Callable[..., object], form: str) -> str:
    """Return the name of a function, for error messages.

    Raises:
        TypeError: a call would only create a generator or a coroutine.
    """
    name: str = getattr(function, "__qualname__", repr(function))
    if not runs_when_called(function):
        raise TypeError(f"{name} must be a plain function: called, it would not run; {form}")
    return name


def hints_of(
    function: Callable[..., object], declared: str, leading: type[Any] = Clients
) -> dict[str, Any]:
    """Return the types of a function's parameters and of its result.

    Args:
        declared: The end of the error: the task or queue, and perhaps the form of its function.
        leading: A type that its module may import for type checkers alone.

    Raises:
        TypeError: a type is not defined where the function is declared.
    """
    try:
        return get_type_hints(function, localns={leading.__name__: leading})
    except NameError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"{name}: {error.name} must be defined in its module, above {declared}"
        ) from error


def _parameters_type(
    name: str,
    function: Callable[..., object],
    parameters: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    form: str,
) -> type[Parameters[Any]]:
    for parameter in parameters:
        if problem := _error_of(parameter, hints):
            raise TypeError(f"{name}: `{parameter.name}` {problem}; {form}")
    fields = [
        (parameter.name, hints[parameter.name], _field(parameter)) for parameter in parameters
    ]
    namespace = {
        "__signature_of_task__": inspect.Signature(parameters),
        "__form__": f"{function.__name__}.bind(...)",
    }
    return dataclasses.make_dataclass(
        "Arguments", fields, bases=(Parameters,), namespace=namespace, frozen=True, kw_only=True
    )


def _error_of(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> str:
    """Return why a function with this parameter is no task; "" if it may be one."""
    has_default = parameter.default is not parameter.empty
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return "must be one argument, not any number of them"
    if parameter.name not in hints:
        return "must have a type, by which deliveries are checked"
    if hints[parameter.name] is Clients:
        return "must be the first parameter, since it gets the clients"
    if has_default and parameter.default.__class__.__hash__ is None:
        return "must have an immutable default, such as None or a tuple"
    return ""


def _field(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return dataclasses.field()
    return dataclasses.field(default=parameter.default)


def _unpacking(kind: type[Parameters[Any]], function: Callable[..., object]) -> TaskFunction:
    signature = kind.__signature_of_task__

    def work(clients: Clients, args: Parameters[Any]) -> object:
        values = {name: getattr(args, name) for name in signature.parameters}
        call = inspect.BoundArguments(signature, values)
        return function(clients, *call.args, **call.kwargs)

    work.__module__, work.__qualname__ = function.__module__, function.__qualname__
    return work
