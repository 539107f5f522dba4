"""A job's function takes the clients and arguments that it needs, and may return nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations import EntitySource, Job, RefusedItemError, job
from rollforward.continuations.declaration import NoArguments
from rollforward.continuations.progress import item_issues, progress
from rollforward.runtime import Clients
from rollforward.tasks import BadArgumentsError
from tests.infra.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence as Several

pytestmark = pytest.mark.fast


class Candle(ndb.Model):
    """Something to light."""

    lit = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Times:
    """How often."""

    count: int = 1


ALL = EntitySource(Candle)


@job(source=ALL)
def light(candles: Sequence[Candle]) -> None:
    """Light each of them once."""
    _light(candles)


@job("light-with-clients", source=ALL)
def _with_clients(clients: Clients, candles: Sequence[Candle]) -> list[None]:
    assert clients.clock is not None
    return _light(candles)


@job("light-with-untyped-clients", source=ALL)
def _with_untyped_clients(clients, candles):  # type: ignore[no-untyped-def]
    assert clients.clock is not None
    return _light(candles)


@job("light-of-a-type-for-checkers", source=ALL)
def _with_a_type_for_checkers(clients: Clients, candles: Several[Candle]) -> None:
    _light(candles)


@job("light-in-a-tasklet", source=ALL)
@ndb.tasklet
def _in_a_tasklet(candles: Sequence[Candle]) -> Iterator[Any]:
    found = yield ndb.get_multi_async([candle.key for candle in candles])
    _light(found)


@job("light-with-an-option", source=ALL)
def _with_an_option(args: Times, candles: Sequence[Candle], *, extra: int = 0) -> None:
    _light(candles, args.count + extra)


@job("light-with-args", source=lambda args: ALL)
def _with_args(args: Times, candles: Sequence[Candle]) -> None:
    _light(candles, args.count)


@job("light-with-both", source=lambda args: ALL)
def _with_both(clients: Clients, args: Times, candles: Sequence[Candle]) -> None:
    assert clients.clock is not None
    _light(candles, args.count)


@job("look", source=ALL, effect="check")
def _look(candles: Sequence[Candle]) -> list[RefusedItemError | None]:
    return [RefusedItemError("it is out") if not candle.lit else None for candle in candles]


@job("tell", source=ALL, effect="side_effect")
@contextlib.contextmanager
def _tell() -> Iterator[Callable[[Candle], None]]:
    yield lambda candle: _light([candle])


@job("tell-times", source=ALL, effect="side_effect")
@contextlib.contextmanager
def _tell_times(args: Times) -> Iterator[Callable[[Candle], None]]:
    yield lambda candle: _light([candle], args.count)


def _light(candles: Sequence[Candle], times: int = 1) -> list[None]:
    fresh = ndb.get_multi([candle.key for candle in candles])
    for candle in fresh:
        candle.lit += times
    ndb.put_multi(fresh)
    return [None] * len(fresh)


FORMS = [
    *(light, _with_clients, _with_untyped_clients, _with_args, _with_both),
    *(_tell, _tell_times, _with_a_type_for_checkers, _with_an_option),
    _in_a_tasklet,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_job_of_each_form_works_on_each_item_once(world: World, form: Job[Any, Any]) -> None:
    """Whatever of the clients and the arguments its function leaves out."""
    world = World(world.services, [form])
    with world.context():
        ndb.put_multi([Candle(id=str(i)) for i in range(5)])
        continuations.start(world.clients, form, run_id=form.name)
    world.settle()
    with world.context():
        assert [candle.lit for candle in Candle.query()] == [1] * 5
        assert progress(form.name).totals.done == 5


def test_results_that_are_returned_count_still(world: World) -> None:
    """None is for all of them; one for each is as it was."""
    world = World(world.services, [_look])
    with world.context():
        ndb.put_multi([Candle(id=str(i), lit=i) for i in range(2)])
        continuations.start(world.clients, _look, run_id="look")
    world.settle()
    with world.context():
        assert [issue.reason for issue in item_issues("look")] == ["it is out"]


def test_a_job_without_a_name_has_that_of_its_function() -> None:
    """As a task has, with dashes; and no arguments, where it names none."""
    assert (light.name, light.args) == ("light", NoArguments)


def test_arguments_without_a_default_are_asked_for() -> None:
    """Before anything is stored."""

    @dataclass(frozen=True)
    class Needed:
        count: int

    needy = Job("needy", "default", Needed, lambda args: ALL)
    with pytest.raises(BadArgumentsError, match=r"job needy needs its arguments.*count"):
        needy.arguments_of(None)
    assert needy.arguments_of(Needed(2)) == Needed(2)


def _no_items(clients: Clients) -> None:
    """Do nothing."""


def _two_arguments(args: Times, more: Times, candles: Sequence[Candle]) -> None:
    """Do nothing."""


def _argument_of_another_kind(percent: int, candles: Sequence[Candle]) -> None:
    """Do nothing."""


async def _that_does_not_run(candles: Sequence[Candle]) -> None:
    """Do nothing."""


def _any_arguments(*args: Any) -> None:
    """Do nothing: a decorator's function, perhaps, around one of some form."""


@pytest.mark.parametrize(
    "work",
    [
        *(_no_items, _two_arguments, _argument_of_another_kind, _any_arguments),
        _that_does_not_run,
    ],
)
def test_a_function_of_another_form_is_refused(work: Callable[..., Any]) -> None:
    """Where it is declared, with its name and the form."""
    with pytest.raises(TypeError, match=rf"{work.__name__}.*\n.*@job\("):
        job(source=ALL)(work)


def test_a_class_of_entities_is_no_source() -> None:
    """It was taken for a function from the arguments to a source: each start failed by ndb."""
    with pytest.raises(TypeError, match=r"source must be EntitySource\(Candle\), got the class"):
        job(source=Candle)


def test_a_side_effect_that_is_no_context_manager_yet_is_refused() -> None:
    """Its decorator was forgotten, and each page failed."""

    def tell(clients: Clients) -> Iterator[Callable[[Candle], None]]:
        yield lambda candle: None

    with pytest.raises(TypeError, match="tell must be a plain function"):
        job("tell-nobody", source=ALL, effect="side_effect")(tell)  # type: ignore[arg-type]
