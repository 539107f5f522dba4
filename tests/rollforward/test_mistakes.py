"""Mistakes of the first hour: each is refused where it is made, in words that say what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.ndb.exceptions import ContextError

from rollforward import continuations, outbox
from rollforward.batches import BatchError, TaskBatch
from rollforward.continuations import EntitySource, Job, job
from rollforward.continuations.progress import progress
from rollforward.datastore.transactions import NoContextError, transact
from rollforward.fork_join import Batch, fork_join
from rollforward.materialized_views import BadContributionError, Contributions, View, ViewGroup
from rollforward.pull_queues import PullQueue
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, Record
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.pushes import check_pushed
from rollforward.tasks import BadArgumentsError, Task, task
from rollforward.tasks.errors import UnknownQueueError, UnknownTaskError
from tests.infra.world import World
from tests.rollforward.tasks.reminders import one_emulator, queued

pytestmark = pytest.mark.fast


class Lamp(ndb.Model):
    cents = ndb.IntegerProperty(indexed=False)


@dataclass(frozen=True)
class Raise:
    percent: int


@task(queue="default")
def announce(clients: Clients, args: Raise) -> None:
    """Do nothing."""


@job("raise-lamps", queue="default", source=lambda args: EntitySource(Lamp))
def raise_lamps(clients: Clients, args: Raise, lamps: Sequence[Lamp]) -> list[None]:
    return [None] * len(lamps)


@fork_join("raises", queue="fork-join", period_s=1)
def count_raises(clients: Clients, batch: Batch, items: Sequence[Raise]) -> None:
    """Do nothing."""


class LampsByPrice(View):
    source = Lamp

    @staticmethod
    def contributions(lamp: Lamp) -> Contributions:
        return {lamp.cents: {}}


LAMPS = ViewGroup("lamps", LampsByPrice)


@pytest.fixture
def of_an_app(world: World) -> Clients:
    """The clients of an app that has registered nothing."""
    return replace(world.clients, task_paths=Registry().tasks)


# A task that no registry has


def push_a_ring(clients: Clients) -> None:
    RINGS.push(clients, "rings", [PushedRecord("r1", {"room": "hall"}, 1_000)])


def commit_a_task(clients: Clients) -> None:
    transact(lambda: outbox.enqueue(clients, announce, Raise(5)))


def commit_an_item(clients: Clients) -> None:
    transact(lambda: count_raises.insert_in_transaction(clients, "lamps", Raise(5)))


UNREGISTERED: dict[str, tuple[str, Callable[[Clients], Any]]] = {
    "task": ("/tasks/announce", lambda c: announce.enqueue(c, Raise(5))),
    "tasks": ("/tasks/announce", lambda c: announce.enqueue_many(c, [Raise(5)])),
    "outbox": ("/tasks/announce", commit_a_task),
    "job": (
        "/tasks/continuations/raise-lamps",
        lambda c: continuations.start(c, raise_lamps, Raise(5), run_id="spring"),
    ),
    "insert": ("/tasks/fork-join/raises/join", lambda c: count_raises.insert(c, "k", Raise(5))),
    "inserts": (
        "/tasks/fork-join/raises/join",
        lambda c: count_raises.insert_each(c, [("k", Raise(5))]),
    ),
    "insert in transaction": ("/tasks/fork-join/raises/join", commit_an_item),
    "view": (
        "/tasks/materialized-views/lamps/apply",
        lambda c: LAMPS.save(c, Lamp(id="one", cents=3)),
    ),
    "push": ("/tasks/streams/rings/work", lambda c: push_a_ring(c)),
}


@one_emulator
@pytest.mark.parametrize("what", UNREGISTERED)
def test_what_no_registry_has_is_refused_when_it_is_enqueued(
    world: World, of_an_app: Clients, what: str
) -> None:
    """It would wait for an hour and then be a dead task; nothing is stored or sent instead."""
    path, enqueue = UNREGISTERED[what]

    with (
        world.context(),
        pytest.raises(UnknownTaskError, match=rf"^{path} is in no registry.* Registry\(\.\.\.\)"),
    ):
        enqueue(of_an_app)

    assert queued(world) == []
    with world.context():
        assert ndb.Query().fetch(keys_only=True) == []


@one_emulator
def test_what_a_registry_has_is_taken(world: World) -> None:
    """As a task, a job or a queue; and without a registry at hand, any is."""
    registry = Registry(announce, raise_lamps, count_raises)
    clients = replace(world.clients, task_paths=registry.tasks)

    with world.context():
        assert announce.enqueue(clients, Raise(5))
        assert continuations.start(clients, raise_lamps, Raise(5), run_id="spring")
        count_raises.insert(clients, "lamps", Raise(5))
        assert announce.enqueue(world.clients, Raise(5))


# A queue that does not exist


@one_emulator
def test_an_unknown_queue_is_named_when_a_task_is_enqueued(world: World) -> None:
    """The text says where to add it, and not that a queue may take a minute to be there."""
    lost = replace(announce, queue="nosuch")

    with pytest.raises(UnknownQueueError) as one:
        lost.enqueue(world.clients, Raise(5))
    with pytest.raises(UnknownQueueError) as many:
        lost.enqueue_many(world.clients, [Raise(5), Raise(6)])

    for raised in (one, many):
        assert str(raised.value).startswith("'nosuch' is not in queue.yaml")
        assert "/tasks/announce" in str(raised.value)
        assert isinstance(raised.value, rpc_errors.NotFound)


# Called instead of enqueued


@pytest.mark.parametrize(
    ("declared", "advice"),
    [
        (announce, r"\.enqueue\(\.\.\.\)"),
        (raise_lamps, r"raise-lamps is a job.*continuations\.start\(clients, job, args"),
        (count_raises, r"raises is a fork-join queue.*\.insert\(clients, key, item\)"),
    ],
    ids=["task", "job", "queue"],
)
def test_what_runs_in_tasks_is_not_called(declared: Any, advice: str) -> None:
    """It would run in the request, once, and be lost with it: the error says what to do."""
    with pytest.raises(TypeError, match=advice):
        declared(None, Raise(5))


# Arguments of another type


@one_emulator
def test_arguments_of_a_job_are_checked_before_anything_is_stored(world: World) -> None:
    """Python makes Raise(percent="5") without a word; the run would fail on every page."""
    wrong: list[Any] = [Raise(percent="5"), Raise(percent=None), {"percent": 5}]  # type: ignore[arg-type]
    for args in wrong:
        with world.context(), pytest.raises(BadArgumentsError, match="job raise-lamps"):
            continuations.start(world.clients, raise_lamps, args, run_id="spring")

    with world.context(), pytest.raises(LookupError):
        progress("spring")
    with pytest.raises(BadArgumentsError, match=r"percent: .* valid integer, not str"):
        announce.enqueue(world.clients, wrong[0])
    assert queued(world) == []


# No context


@one_emulator
def test_a_call_without_a_context_says_how_to_open_one(world: World) -> None:
    """In a script, a thread or a prompt: for a pattern's calls and for ndb's own."""
    calls: list[Callable[[], Any]] = [
        lambda: progress("spring"),
        lambda: Lamp.get_by_id("one"),
        lambda: Lamp(id="one").put(),
        lambda: LAMPS.read(world.clients, LampsByPrice),
        lambda: transact(lambda: None),
        lambda: continuations.start(world.clients, raise_lamps, Raise(5), run_id="spring"),
    ]
    for call in calls:
        with pytest.raises((ContextError, NoContextError), match=r"`with clients\.context\(\): "):
            call()


# Declarations of another form


async def that_does_not_run(clients: Clients, batch: Batch, items: Sequence[Raise]) -> None:
    pass


def without_a_type(clients, args, items):  # type: ignore[no-untyped-def]
    pass


def with_too_little(clients: Clients) -> None:
    pass


def with_a_text(clients: Clients, args: str, items: str) -> None:
    pass


def of_types_to_come(clients: Clients, args: ToCome, items: Sequence[ToCome]) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


@pytest.mark.parametrize(
    "work",
    [without_a_type, with_too_little, with_a_text, of_types_to_come],
    ids=lambda w: w.__name__,
)
def test_a_function_of_another_form_is_refused_as_a_job_and_as_a_queue(work: Any) -> None:
    """As a task's is: the error names the function and shows the right form."""
    with pytest.raises(TypeError, match=rf"{work.__name__}.*\n.*@job\("):
        job("x", queue="default", source=lambda args: EntitySource(Lamp))(work)
    with pytest.raises(TypeError, match=rf"{work.__name__}.*\n.*@fork_join\("):
        fork_join("x", queue="default", period_s=0)(work)


def without_a_batch(clients: Clients, items: Sequence[Raise]) -> None:
    """Do nothing: its clients would be a batch."""


def ignores_the_batch(_, items: Sequence[Raise]):  # type: ignore[no-untyped-def]
    """Do nothing."""


def test_a_join_of_two_parameters_gets_the_batch_first() -> None:
    """One of the clients and the items failed with every batch."""
    with pytest.raises(TypeError, match=r"without_a_batch must accept a batch"):
        fork_join("raises-of-two", queue="default", period_s=0)(without_a_batch)
    fork_join("raises-of-two", queue="default", period_s=0)(ignores_the_batch)


def test_a_join_that_would_not_run_is_refused() -> None:
    """A coroutine would be created, and its items counted as folded."""
    with pytest.raises(TypeError, match=r"that_does_not_run must be a plain function"):
        fork_join("x", queue="default", period_s=0)(that_does_not_run)


def test_a_job_is_declared_with_the_options_of_its_run() -> None:
    """By the decorator alone; those that are left out are as by default."""

    @job(
        "lamp-labels",
        source=lambda args: EntitySource(Lamp),
        effect="check",
        page_size=7,
        max_attempts=2,
        retry_delays_s=(1.0,),
        lease_s=3.0,
        deadline_s=9.0,
    )
    def check(clients: Clients, args: Raise, lamps: Sequence[Lamp]) -> list[None]:
        return [None] * len(lamps)

    assert (check.name, check.queue, check.args) == ("lamp-labels", "default", Raise)
    assert (check.apply, check.side_effect, check.on_finished) == (None, None, None)
    assert check.check is not None
    assert (check.page_size, check.max_attempts, check.retry_delays_s) == (7, 2, (1.0,))
    assert (check.lease_s, check.deadline_s) == (3.0, 9.0)


def test_what_is_declared_stays_what_it_was() -> None:
    """That it cannot be called takes nothing from it."""
    assert isinstance(announce, Task)
    assert isinstance(raise_lamps, Job)
    assert raise_lamps.args is Raise


# An argument in the wrong place


@task(queue="default")
def ring(room: str) -> None:
    """Do nothing."""


class Rings(Computation):
    inputs: ClassVar = {"rings": lambda ring: ring["room"]}

    def record(self, ctx: Context, record: Record) -> None:
        """Do nothing."""


RINGS, BELLS = Pipeline("rings", Rings), TaskBatch("bells", members=[ring])


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: ring.enqueue("hall", delay_s=5), r"enqueue\(task\.bind\(\.+\), delay_s="),
        (lambda: ring.enqueue(ring.bind("hall"), delay=5), "delay_s, at, .* lane, got delay"),
        (lambda: check_pushed([{"room": "hall"}]), r"takes PushedRecord\(id, value, "),
        (lambda: Registry(LAMPS), r"ViewMaintenance\(group\)"),
        (lambda: Registry(LampsByPrice), r"ViewMaintenance\(group\)"),
        (lambda: Registry(Rings), r"Pipeline\(name, Clicks\)"),
        (lambda: Registry([ring]), r"Registry\(\*parts\)"),
    ],
)  # fmt: skip
@one_emulator
def test_an_argument_in_the_wrong_place_says_what_to_write(
    world: World, call: Callable[[], object], advice: str
) -> None:
    """Before, these were attribute errors, names of private functions, or lists of types alone."""
    with world.context(), pytest.raises((TypeError, ValueError), match=advice):
        call()


@one_emulator
def test_a_member_without_its_task_says_what_a_member_is(world: World) -> None:
    """A bound call names no task: "cannot unpack" said nothing."""
    with world.context(), pytest.raises(BatchError, match=r"must be \(task, its arguments\)"):
        BELLS.populate(world.clients, "b1", [ring.bind("hall")])  # type: ignore[list-item]


@one_emulator
def test_a_source_that_a_view_cannot_take_is_named(world: World) -> None:
    """With its view: a save may have many sources, and a group many views."""
    refused = r"lamps_by_price cannot take Lamp 'floor': row name must be a str"
    with world.context(), pytest.raises(BadContributionError, match=refused):
        LAMPS.save(world.clients, Lamp(id="desk", cents=5), Lamp(id="floor"))


@one_emulator
def test_all_queues_that_are_missing_are_named_at_once(world: World) -> None:
    """Else each is found by another start of the app."""
    registry = Registry(*(Task(f"/tasks/{name}", name, Raise, print) for name in ("nix", "nought")))
    with pytest.raises(UnknownQueueError, match=r"'nix', which does not exist \(nor do nought\)"):
        registry.check_queues(["default", "outbox"])


def test_a_pattern_that_is_not_registered_is_named_by_its_part(of_an_app: Clients) -> None:
    """And not by a function of the library, which nobody can register."""
    refused = r"add what declares it \(the ViewMaintenance of 'lamps'\)"
    with of_an_app.context(), pytest.raises(UnknownTaskError, match=refused):
        LAMPS.save(of_an_app, Lamp(id="desk", cents=5))


class NoSource(View):
    """No kind."""


class NoRows(View):
    source = Lamp


@pytest.mark.parametrize(
    ("view", "advice"),
    [(Lamp, "extend View"), (NoSource, "a `source`"), (NoRows, "a `contributions`")],
)
def test_a_view_that_lacks_something_is_refused_where_its_group_is(
    view: type[View], advice: str
) -> None:
    """Before, it was an attribute error, or an error of the first save."""
    with pytest.raises(TypeError, match=advice):
        ViewGroup("lamps", view)


# A call that commits at once, in a transaction


LETTERS = PullQueue("letters")


@one_emulator
@pytest.mark.parametrize(
    ("call", "twin"),
    [
        (lambda clients: LETTERS.add(clients, "Dear Ada"), "add_in_transaction"),
        (push_a_ring, "push_in_transaction"),
    ],
)
def test_a_call_that_no_rollback_undoes_is_refused_in_a_transaction(
    world: World, call: Callable[[Clients], object], twin: str
) -> None:
    """It stayed when the transaction was given up, and came twice when its body ran again."""
    with world.context(), pytest.raises(RuntimeError, match=f"write {twin}, or do it after"):
        transact(lambda: call(world.clients))

    with world.context():
        assert LETTERS.lease(world.clients) == []


@one_emulator
@pytest.mark.parametrize("watermark", [1_790_000_000_000_000, 1.79e12, float("nan"), -1])
def test_a_push_with_a_watermark_that_is_no_time_is_refused(world: World, watermark: Any) -> None:
    """One in microseconds would end its source; a fraction would stop the pipeline."""
    with world.context(), pytest.raises(BadRecordError, match="whole milliseconds since 1970"):
        RINGS.push(world.clients, "rings", [], watermark=watermark)
