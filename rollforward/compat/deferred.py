"""Deferred calls with the names of google.appengine.ext.deferred, as declared tasks.

    from rollforward.compat import deferred

    @deferred.deferrable
    def send(user_id: int, subject: str = "") -> None: ...

    serve = rf.serve(app, send)

    deferred.defer(send, 7, subject="Hello", _countdown=60)

A call stays as it was. Its function is declared with `deferrable`, has typed parameters, and is
registered like any task; `deferred.tasks(mails, images)` returns all of some modules. It remains a
function: `send(7)` calls it here and now.

The original pickled the function and its arguments. Here arguments travel as JSON, checked when
they are deferred and when they are delivered, and a delivery runs the function that the registry
has for its path. So nothing is unpickled, and a payload names no code.

| option | meaning |
|---|---|
| `_countdown`, `_eta` | seconds from now, or a time; a naive one is in UTC |
| `_queue` | a queue of queue.yaml; default the function's own |
| `_name` | a second call of this name raises TaskAlreadyExistsError |
| `_transactional` | True: the task commits with the transaction; False: it is created at once |

In a transaction `_transactional` is True unless it is passed: a body may run twice, or never
commit. `_url`, `_target`, `_headers` and `_retry_options` raise BadArgumentsError, with the code to
write instead. Methods, lambdas, classes and other objects had to be pickled, and raise TypeError.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from rollforward import outbox
from rollforward.compat import refusals
from rollforward.compat.options import Options
from rollforward.datastore import is_in_transaction
from rollforward.runtime.process.current import current_clients
from rollforward.tasks import Reject, Retry, Task, task
from rollforward.tasks.parameters import Parameters, bound

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

__all__ = [
    "Deferrable",
    "Error",
    "PermanentTaskFailure",
    "SingularTaskFailure",
    "TaskAlreadyExistsError",
    "defer",
    "deferrable",
    "tasks",
]

_MAX_QUEUES = 256  # Copies of functions for other queues than their own.


class Error(Exception):
    """Base class of the errors of this module."""


class PermanentTaskFailure(Error, Reject):
    """This task will never succeed: it is kept as a dead task, and not retried."""


class SingularTaskFailure(Error, Retry):
    """This task failed once: it is retried, without a traceback in the log."""


class TaskAlreadyExistsError(Error):
    """A task of this `_name` was created before; it waits, or ran within the last hours.

    It replaces taskqueue.TaskAlreadyExistsError and TombstonedTaskError: Cloud Tasks answers alike
    in both cases.
    """


@dataclass(frozen=True)
class Deferrable(Task[Parameters[P]], Generic[P, R_co]):
    """A function that can be deferred: a task that can also be called.

    It has `enqueue` and `bind`, like every task: `send.enqueue(send.bind(7), delay_s=60)`.
    """

    original: Callable[P, R_co] = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        vars(self).update(
            __name__=self.original.__name__,
            __doc__=self.original.__doc__,
            __wrapped__=self.original,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function here and now."""
        return self.original(*args, **kwargs)


class _Decorator(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Deferrable[P, R]: ...


@overload
def deferrable(function: Callable[P, R], /) -> Deferrable[P, R]: ...


@overload
def deferrable(
    *,
    queue: str = "default",
    path: str | None = None,
    max_attempts: int = 50,
    deadline_s: int | None = None,
) -> _Decorator: ...


def deferrable(
    function: Any = None,
    /,
    *,
    queue: str = "default",
    path: str | None = None,
    max_attempts: int = 50,
    deadline_s: int | None = None,
) -> Any:
    """Declare that the function below can be deferred.

    Args:
        queue: The queue of its calls without `_queue`.
        path: Path of its deliveries; default /tasks/deferred/ and its module and name. Waiting
            tasks find a function that was moved or renamed only by a path of its own.
        max_attempts: Failures after which a call is kept as a dead task.
        deadline_s: Seconds that a delivery may take, 15 to 1,800; default 600.

    Raises:
        TypeError: by the decorator, when calls of the function could not be stored as JSON, or not
            be found by name.
        ValueError: the path is not below /tasks/, or the deadline is out of its bounds.
    """

    def declare(function: Callable[P, R]) -> Deferrable[P, R]:
        refusals.check_function(function)
        default = f"/tasks/deferred/{function.__module__}.{function.__qualname__}"
        declare_task = task(
            path or default, queue=queue, max_attempts=max_attempts, deadline_s=deadline_s
        )
        declared: Task[Any] = declare_task(function)
        refusals.check_types(function, declared.args)
        fields = {field.name: getattr(declared, field.name) for field in dataclasses.fields(Task)}
        return Deferrable(**fields, original=function)

    return declare if function is None else declare(function)


def tasks(*modules: ModuleType) -> list[Deferrable[..., Any]]:
    """Return the functions of some modules that can be deferred: `rf.serve(app, *tasks(mails))`."""
    values = [value for module in modules for value in vars(module).values()]
    by_path = {value.path: value for value in values if isinstance(value, Deferrable)}
    return list(by_path.values())


# A signature with parameters of its own between `P.args` and `P.kwargs` is not allowed (PEP 612):
# type checkers check the arguments of calls without options. All calls are checked by `defer`.
@overload
def defer(function: Deferrable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
@overload
def defer(
    function: Deferrable[..., Any], /, *args: Any, _countdown: float | None, **kwargs: Any
) -> None: ...
@overload
def defer(function: Deferrable[..., Any], /, *args: Any, _eta: Any, **kwargs: Any) -> None: ...
@overload
def defer(
    function: Deferrable[..., Any], /, *args: Any, _queue: str | None, **kwargs: Any
) -> None: ...
@overload
def defer(
    function: Deferrable[..., Any], /, *args: Any, _name: str | None, **kwargs: Any
) -> None: ...
@overload
def defer(
    function: Deferrable[..., Any], /, *args: Any, _transactional: bool | None, **kwargs: Any
) -> None: ...
def defer(function: Any, /, *args: Any, **kwargs: Any) -> None:
    """Defer a call: a task runs it soon, at least once.

    Raises:
        TypeError: the function is not declared; the text says what to write.
        TaskAlreadyExistsError: a task of this `_name` exists, or ran a while ago. A transaction
            does not learn of it: it commits, and no second task is created.
        NoTransactionError: `_transactional=True`, and this is not the body of `transact`.
        BadArgumentsError, TooLargeError, UnknownTaskError, UnknownQueueError, NoClientsError:
            nothing was deferred, and the text says what to do.
    """
    if not isinstance(function, Deferrable):
        raise TypeError(refusals.of_callable(function))
    options = Options.taken_from(kwargs)
    target = _on_queue(function, options.queue) if options.queue else function
    bound_args = _bound(target, args, kwargs)
    name = [options.name] if options.name is not None else None
    clients = current_clients()
    at = options.at(clients)
    in_transaction = is_in_transaction() if options.transactional is None else options.transactional
    if in_transaction:
        outbox.enqueue(clients, target, bound_args, name=name, at=at)
    elif not target.enqueue(clients, bound_args, name=name, at=at):
        raise TaskAlreadyExistsError(f"{options.name!r} exists already, for {target.path}")


@functools.lru_cache(maxsize=_MAX_QUEUES)
def _on_queue(function: Deferrable[..., Any], queue: str) -> Deferrable[..., Any]:
    return dataclasses.replace(function, queue=queue)


def _bound(function: Deferrable[..., Any], args: Any, kwargs: Any) -> Parameters[Any]:
    """Return the arguments of a call as the task takes them: a dataclass of them, or their own."""
    if issubclass(function.args, Parameters):
        return bound(function.args, function.path, args, kwargs)
    argument = refusals.only_argument(function.original, function.path, args, kwargs)
    return cast("Parameters[Any]", argument)


if not TYPE_CHECKING:

    def __getattr__(name):
        """Say what replaces a name of the original."""
        raise AttributeError(refusals.of_name(__name__, name))
