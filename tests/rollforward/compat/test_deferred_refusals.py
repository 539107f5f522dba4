"""Whatever the original `deferred` took and this one cannot: refused, with the code to write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.compat import deferred
from rollforward.runtime import Clients
from rollforward.tasks import BadArgumentsError, task
from tests.infra.world import World
from tests.rollforward.compat.deferred_calls import greet
from tests.rollforward.tasks.reminders import one_emulator, queued

pytestmark = pytest.mark.fast


class User(ndb.Model):
    """An entity whose methods an old app would defer."""

    def mail(self, subject: str) -> None: ...

    @classmethod
    def mail_all(cls) -> None: ...

    @staticmethod
    def mail_nobody() -> None: ...


class Mailer:
    """An object that can be called, and has a method."""

    def __call__(self) -> None: ...

    def mail(self) -> None: ...


def plain(user_id: int) -> None: ...


def nested() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


@task
def declared(user_id: int) -> None: ...


CALLABLES: dict[str, tuple[Any, str]] = {
    "function": (plain, r"^plain must be declared before it is deferred: write"),
    "method": (Mailer().mail, r"^Mailer\.mail cannot be deferred: a method would need its object"),
    "class method": (User.mail_all, "method would need its object pickled"),
    "lambda": (lambda: None, "a lambda has no name"),
    "nested": (nested(), "no registry has it"),
    "class": (Mailer, "^Mailer cannot be deferred: a class is not a function"),
    "instance": (Mailer(), "^Mailer cannot be deferred: an object that can be called"),
    "partial": (functools.partial(plain, 1), "pass them to defer"),
    "built-in": (print, "^print cannot be deferred: a built-in function"),
    "result": (None, r"write defer\(send, 7\), not defer\(send\(7\)\)"),
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_a_callable_that_had_to_be_pickled_is_refused(kind: str) -> None:
    """By `defer`, and by `deferrable`, unless it only lacks the declaration."""
    function, problem = CALLABLES[kind]
    advice = r"@deferred\.deferrable\n.*\n\n    serve = rf\.serve\(app, send\)"

    with pytest.raises(TypeError, match=rf"(?s){problem}.*{advice}"):
        deferred.defer(function)
    if kind not in ("function", "result"):
        with pytest.raises(TypeError, match=rf"(?s)cannot be deferred.*{advice}"):
            deferred.deferrable(function)


def test_a_task_is_enqueued_and_not_deferred() -> None:
    with pytest.raises(TypeError, match=r"declared is a task of its own: write \.enqueue\("):
        deferred.defer(declared, 7)  # type: ignore[arg-type]


def untyped(user_id): ...  # type: ignore[no-untyped-def]


def any_number(*user_ids: int) -> None: ...


def any_options(**options: int) -> None: ...


def option_of_defer(_queue: str) -> None: ...


def gone_option(_target: str) -> None: ...


def with_clients(clients: Clients, user_id: int) -> None: ...


def with_key(user: ndb.Key) -> None: ...


def with_entities(users: list[User] | None = None) -> None: ...


def of_a_type_to_come(user: ToCome) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def with_a_list(users: list[int] = []) -> None: ...  # noqa: B006


def makes_ids(user_id: int) -> Any:
    yield user_id


async def later(user_id: int) -> None: ...


DECLARATIONS: dict[Any, str] = {
    untyped: r"untyped cannot be deferred: `user_id` must have a type.*@deferred\.deferrable",
    any_number: "`user_ids` must be one argument",
    any_options: "`options` must be one argument",
    option_of_defer: "`_queue` is an option of defer",
    gone_option: "`_target` is an option of defer",
    with_clients: r"`clients` cannot be an argument.*: call rf\.clients\(\) in the function",
    with_key: r"`user` cannot be a Key.*take its id.*key\.urlsafe\(\)",
    with_entities: "`users` cannot be a User, which would be pickled",
    User.mail: "a method would need its object pickled",
    User.__dict__["mail_nobody"]: "a method would need its object pickled",
    User.mail_nobody: "a method would need its object pickled",
    of_a_type_to_come: "ToCome must be defined in its module",
    with_a_list: "`users` must have an immutable default",
    makes_ids: "must be a plain function",
    later: "must be a plain function",
}


@pytest.mark.parametrize("function", DECLARATIONS, ids=lambda f: getattr(f, "__name__", repr(f)))
def test_a_function_whose_calls_are_not_json_is_refused_by_its_declaration(function: Any) -> None:
    with pytest.raises(TypeError, match=rf"(?s){DECLARATIONS[function]}"):
        deferred.deferrable(function)
    with pytest.raises(TypeError, match=rf"(?s){DECLARATIONS[function]}"):
        deferred.deferrable(queue="fan-out")(function)


def test_a_path_and_a_deadline_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^path must start with /tasks/, got '/x'$"):
        deferred.deferrable(path="/x")(plain)
    with pytest.raises(ValueError, match=r"^deadline_s must be 15 to 1800 seconds, got 5$"):
        deferred.deferrable(deadline_s=5)(plain)


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "url": ({"_url": "/work"}, r"^_url is no longer taken: .*deferrable\(path="),
    "target": ({"_target": "v2"}, "^_target is no longer taken: .*TASKS_URL"),
    "headers": ({"_headers": {"a": "b"}}, "^_headers is no longer taken: pass it as an argument"),
    "retries": ({"_retry_options": object()}, r"deferrable\(max_attempts="),
    "both times": ({"_countdown": 1, "_eta": object()}, "cannot be passed together"),
    "eta": ({"_eta": "2030-01-01"}, "^_eta must be a datetime, got '2030-01-01'"),
    "name": ({"_name": 7}, "^_name must be a str, got 7"),
    "queue": ({"_queue": 7}, "^_queue must be a str, got 7"),
    "transactional": ({"_transactional": 1}, "^_transactional must be a bool, got 1"),
    "countdown": ({"_countdown": "soon"}, "^_countdown must be a number of seconds, got 'soon'"),
    "countdowns": ({"_countdown": [1]}, "^_countdown must be a number of seconds"),
    "infinite": ({"_countdown": float("inf")}, "^_countdown must be a number of seconds, got inf"),
    "too far": ({"_countdown": 31 * 86400}, "within 30 days"),
}


@one_emulator
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_cannot_be_kept_is_refused(world: World, option: str) -> None:
    """Nothing is sent."""
    options, problem = OPTIONS[option]

    with world.context(), pytest.raises(BadArgumentsError, match=problem):
        deferred.defer(greet, "Ada", **options)
    assert queued(world) == []


def test_an_option_that_is_gone_may_be_none() -> None:
    """Old code that passes them on passes None on."""
    gone = {"_url": None, "_target": None, "_headers": None, "_retry_options": None}

    with pytest.raises(LookupError, match="there are no clients here"):
        deferred.defer(greet, "Ada", **gone)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("application", r"^deferred\.application is gone: rf\.serve\("),
        ("run", r"^deferred\.run is gone: nothing is unpickled"),
        ("set_log_level", r"^deferred\.set_log_level is gone: write logging"),
        ("nosuch", r"^module 'rollforward\.compat\.deferred' has no attribute 'nosuch'$"),
    ],
)
def test_a_name_of_the_original_says_what_replaces_it(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=advice):
        getattr(deferred, name)
