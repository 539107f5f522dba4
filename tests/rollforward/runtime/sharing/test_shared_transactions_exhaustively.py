"""Two callers and a failing third, in every group, every interleaving, with any one fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore import helpers
from google.cloud.datastore_v1.types import Entity
from google.cloud.ndb import model
from google.cloud.ndb.context import get_context

from rollforward.datastore import current
from rollforward.runtime.sharing import shared_transaction
from rollforward.runtime.sharing.open_transaction import OpenTransaction
from rollforward.runtime.sharing.shared_transaction import SharedBody, _Caller
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking.model_checker import (
    CRASH,
    REPLY_LOST,
    UNHEARD,
    End,
    Process,
    Search,
)
from tests.infra.model_checking.stepwise import rows, stepwise
from tests.rollforward.runtime.sharing.shared_bodies import RunningSum, add_once, end, keys_of

NONE = ""
FAULTS = [NONE, CRASH, UNHEARD, REPLY_LOST]
# All ways in which three calls can share transactions; groups side by side are two processes, or
# two groups in progress.
GROUPS = ["abc", "ab c", "a bc", "ac b", "a b c"]


class OwnError(Exception):
    """The third caller's own error."""


class Poison(ndb.Model):
    """An entity that the service refuses."""


def fail() -> None:
    raise OwnError


# The third caller: what its body does at its end.
THIRDS: dict[str, Callable[[], object]] = {
    "sound": lambda: None,
    "raises": fail,
    "poison": lambda: current.put(Poison(id="c")),
}


class StepwiseTransaction(OpenTransaction):
    """A transaction whose reads are a step of the search, and its commit is another."""

    def __init__(self, client: Any) -> None:
        self._id = b"search"
        self._context = get_context().new(transaction=self._id, commit_batches=None, cache=None)
        self._seen: dict[Any, str] = {}

    def lookup(self, keys: Sequence[Any]) -> dict[Any, Any]:
        facts = rows("read", lambda memory: self._facts(memory, keys))
        self._seen = {key: _text(fact) for key, fact in zip(keys, facts, strict=True)}
        return {
            key: fact[0](key=key, **fact[1]) if fact else None
            for key, fact in zip(keys, facts, strict=True)
        }

    def _facts(self, memory: Memory, keys: Sequence[Any]) -> list[Any]:
        return [memory.facts.get(key) for key in keys]

    def commit(self, mutations: Sequence[Any]) -> None:
        entities = [
            model._entity_from_ds_entity(helpers.entity_from_protobuf(Entity.wrap(each.upsert)))
            for each in mutations
        ]

        def effect(memory: Memory) -> None:
            if any(_text(memory.facts.get(key)) != seen for key, seen in self._seen.items()):
                raise rpc_errors.Aborted("made by the search")  # type: ignore[no-untyped-call]
            if any(isinstance(entity, Poison) for entity in entities):
                raise rpc_errors.InvalidArgument("made by the search")  # type: ignore[no-untyped-call]
            for entity in entities:
                memory.put(entity)

        rows("commit", effect)

    def roll_back(self) -> None:
        """Do nothing: what was read is not locked."""


class TransactionOfItsBegin(StepwiseTransaction):
    """A transaction that reads as of its begin, as a store may."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._begun: dict[Any, Any] = rows("begin", lambda memory: dict(memory.facts))

    def _facts(self, memory: Memory, keys: Sequence[Any]) -> list[Any]:
        return [self._begun.get(key) for key in keys]


def _text(fact: Any) -> str:
    """Return what stands for an entity's version."""
    return fact[2] if fact else ""


@pytest.fixture(autouse=True)
def in_steps() -> Iterator[None]:
    with (
        stepwise(),
        mock.patch.object(shared_transaction, "OpenTransaction", StepwiseTransaction),
        mock.patch.object(shared_transaction, "pause_before_retry"),
    ):
        yield


def outcomes(clients: Any, names: str, third: str) -> tuple[str, ...]:
    """Run a group; return what its callers learn."""
    bodies = [add_once(name, THIRDS[third] if name == "c" else lambda: None) for name in names]
    callers: list[_Caller[Any]] = [_Caller(body, "") for body in bodies]
    shared_transaction._try_together(clients, callers)
    return tuple(_told(end(clients, caller)) for caller in callers)


def _told(answer: Any) -> str:
    return type(answer).__name__ if isinstance(answer, Exception) else "counted"


def rival(clients: Any) -> str:
    """Add to the third caller's sum, in a transaction of its own."""
    caller: _Caller[Any] = _Caller(_rival_body(), "")
    shared_transaction._try_together(clients, [caller])
    return _told(end(clients, caller))


def _rival_body() -> SharedBody[None]:
    key = keys_of("c")[1]

    def run(keys: Sequence[Any]) -> None:
        [row] = current.get_multi([key])
        row = row or RunningSum(key=key)
        row.total += 100
        current.put(row)

    return SharedBody(run, reads=lambda draw: [key], rows=frozenset("c"))


def searched(groups: str, third: str, fault: str, *, has_rival: bool) -> Search:
    processes = [
        Process(names, lambda clients, names=names: outcomes(clients, names, third))
        for names in groups.split()
    ]
    if has_rival:
        processes.append(Process("rival", rival))
    return Search(processes, lambda clients, message: None, fault=fault)


def walk(search: Search, third: str, *, at_least: int) -> None:
    """Check each end: who was told so has counted once, and nobody twice."""
    for reached in search.ends():
        with_story = search.story(reached)
        for name, answer in told(reached).items():
            total = totals(reached, name)
            assert total <= 1, with_story
            assert total == 1 or answer != "counted", with_story
            if not search.fault:
                assert answer == expected(name, third), with_story
                assert total == (answer == "counted"), with_story
    assert search.states >= at_least


def expected(name: str, third: str) -> str:
    errors = {"sound": "counted", "raises": "OwnError", "poison": "InvalidArgument"}
    return errors[third] if name == "c" else "counted"


def told(reached: End) -> dict[str, str]:
    """Return what each caller was told; "died": its process did."""
    answers: dict[str, str] = {}
    for names, call in reached.answers.items():
        if names != "rival":
            learned = call.arguments[0] if call.what == "returned" else [call.what] * len(names)
            answers.update(zip(names, learned, strict=True))
    return answers


def totals(reached: End, name: str) -> int:
    """Return what a caller has counted, without the rival's hundred."""
    fact = reached.rows.facts.get(keys_of(name)[1])
    return fact[1]["total"] % 100 if fact else 0


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("third", list(THIRDS))
@pytest.mark.parametrize("groups", GROUPS)
def test_two_callers_and_a_failing_third_in_every_interleaving(
    groups: str, third: str, fault: str
) -> None:
    """M9: each counts once if it is told so, and the third's error is its own."""
    walk(searched(groups, third, fault, has_rival=False), third, at_least=2)


@pytest.mark.parametrize("fault", [NONE, CRASH])
@pytest.mark.parametrize("groups", ["abc", "ab c"])
def test_with_a_rival_of_the_third_the_others_count(groups: str, fault: str) -> None:
    """M9: a race that the third loses fails none of the others, and no addition is lost."""
    search = searched(groups, "sound", fault, has_rival=True)
    walk(search, "sound", at_least=10)
    for reached in search.ends():
        is_told = reached.answers["rival"].arguments[0:1] == ("counted",)
        fact = reached.rows.facts.get(keys_of("c")[1])
        assert not is_told or (fact is not None and fact[1]["total"] >= 100)


_run = _Caller.run


def run_and_keep_writes(caller: _Caller[Any], *arguments: Any) -> None:
    """Keep the writes of a body that has raised."""
    _run(caller, *arguments)
    caller.mutations = caller.transaction.mutations


def come_late(clients: Any) -> tuple[str, ...]:
    """Let a leader begin, a caller count, and then look for its proof in the leader's group."""
    leader: _Caller[Any] = _Caller(add_once("a"), "")
    leader.begin(clients)
    first = outcomes(clients, "b", "sound")
    late: _Caller[Any] = _Caller(_finding_body(), "")
    shared_transaction._try_together(clients, [leader, late])
    return (*first, *(_told(end(clients, caller)) for caller in (leader, late)))


def _finding_body() -> SharedBody[None]:
    key = keys_of("b")[0]

    def run(keys: Sequence[Any]) -> None:
        if current.get_multi(keys) == [None]:
            raise OwnError

    return SharedBody(run, reads=lambda draw: [key], rows=frozenset("late"))


def walk_late(fault: str) -> None:
    search = Search([Process("late", come_late)], lambda clients, message: None, fault=fault)
    for reached in search.ends():
        [call] = reached.answers.values()
        if call.what == "returned":
            first, _, late = call.arguments[0]
            assert (first, late) != ("counted", "OwnError"), search.story(reached)


@pytest.mark.parametrize("fault", FAULTS)
def test_who_comes_after_the_begin_finds_what_it_has_written_before(fault: str) -> None:
    """M9: a caller learns nothing of a transaction that began before its call."""
    with mock.patch.object(shared_transaction, "OpenTransaction", TransactionOfItsBegin):
        walk_late(fault)


def run_as_if_early(caller: _Caller[Any], *arguments: Any) -> None:
    """Trust what a late caller has read."""
    caller.is_late = False
    _run(caller, *arguments)


def test_without_that_it_misses_what_it_has_written() -> None:
    """M9 fails where a late caller is trusted like the others."""
    with (
        mock.patch.object(shared_transaction, "OpenTransaction", TransactionOfItsBegin),
        mock.patch.object(_Caller, "run", run_as_if_early),
        pytest.raises(AssertionError),
    ):
        walk_late(NONE)


@pytest.mark.parametrize(
    ("owner", "planted", "instead", "third"),
    [
        (shared_transaction, "_DATA_REFUSED", (), "poison"),
        (shared_transaction, "is_last_attempt", lambda failures, began_s: True, "sound"),
        (_Caller, "run", run_and_keep_writes, "raises"),
    ],
    ids=["no halves", "no second attempt", "no writes dropped"],
)
def test_the_search_finds_a_planted_bug(owner: Any, planted: str, instead: Any, third: str) -> None:
    """M9 fails without the parting of a refused group, and without each other guard."""
    is_race = third == "sound"
    search = searched("ab c" if is_race else "abc", third, NONE, has_rival=is_race)
    with mock.patch.object(owner, planted, instead), pytest.raises(AssertionError):
        walk(search, third, at_least=2)
