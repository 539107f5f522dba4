"""Members at work: what they cannot say, and what another version of the code may read."""

from __future__ import annotations

import json

import pytest

from rollforward.batches import ClosedError, members
from rollforward.batches.completion import MAX_RESULT_BYTES
from rollforward.batches.declaration import MemberRef
from rollforward.batches.entities import HAS_FAILED, BatchPage, BatchWork, pages_within
from rollforward.batches.errors import DifferentWorkError
from rollforward.batches.members import Member
from rollforward.runtime.errors import OutcomeUnknownError
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    NOTES,
    RAN,
    deliver_all,
    deliver_next,
    notes,
    outcomes,
    rows_here,
)


def run(world: World, *labels: str) -> None:
    with world.context():
        NOTES.populate(world.clients, "b", notes(*labels), seal=True)
    world.settle()


def test_half_a_character_in_an_error_or_a_result_fails_a_member_once(world: World) -> None:
    """F6: no row takes it; the error is listed with what stands for it."""
    run(world, "half an error", "half a result")

    with world.context():
        errors = [member.error for member in NOTES.failures("b")]
    assert errors[0] == "Reject: a guest called \\ud83d"
    assert "must be JSON" in errors[1]
    assert set(RAN.values()) == {1}


def test_an_error_takes_as_many_bytes_as_a_result(world: World) -> None:
    """F6: in JSON an emoji takes twelve, and the errors of a fold share a row."""
    run(world, "emoji")

    with world.context():
        [failed] = NOTES.failures("b")
    assert failed.error.startswith("Reject: \U0001f600\U0001f600")
    assert MAX_RESULT_BYTES - 12 < len(json.dumps(failed.error)) - 2 <= MAX_RESULT_BYTES


def write_as_the_next_version(world: World) -> None:
    """Store a member whose arguments this version cannot read."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a"), seal=True)
        [work] = rows_here(BatchWork)
        work.members = [[0, '{"label": {"text": "in two languages"}}']]
        work.put()
    deliver_next(world, "default")


def test_a_member_whose_end_is_in_doubt_is_delivered_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: so many inserts were not confirmed; its task goes on until one is."""
    tried = list[str]()

    def unconfirmed(clients: object, key: str, *args: object) -> None:
        tried.append(key)
        raise OutcomeUnknownError("made by a test")

    with world.context():
        NOTES.populate(world.clients, "b", notes("a"), seal=True)
    deliver_next(world, "default")
    with monkeypatch.context() as patch:
        patch.setattr(members.end_members, "insert", unconfirmed)
        answer = deliver_next(world, "fan-out")
    world.settle()

    assert len(tried) == members.MAX_INSERTS
    assert answer is None or answer >= 400
    with world.context():
        assert outcomes(NOTES, "b") == ["done"]


def test_a_member_of_the_next_version_waits_for_it(world: World) -> None:
    """F6: as a task does whose arguments a version cannot read, for an hour."""
    write_as_the_next_version(world)
    answers = [deliver_next(world, "fan-out")]
    for _ in range(58):
        world.clock.sleep(61)
        answers += [deliver_next(world, "fan-out")]
    with world.context():
        early = NOTES.progress("b").failed
    world.clock.sleep(120)
    answer = deliver_next(world, "fan-out")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")

    assert set(answers) == {200}
    assert early == 0
    assert answer == 204
    with world.context():
        [failed] = NOTES.failures("b")
        assert failed.error.startswith("OtherVersionError: /tasks/note: label")
        assert not DeadTask.query().fetch()


def test_a_member_that_has_ended_adds_no_more(world: World) -> None:
    """F5: its delivery comes twice, and the sealed batch waits for the other member alone."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "b"), seal=True)
    deliver_next(world, "default")
    deliver_next(world, "fan-out")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")

    with world.context():
        ended = outcomes(NOTES, "b").index("done")
        [page] = pages_within("notes:b").fetch(keys_only=True)
        late, at_work = (
            Member(world.clients, NOTES.declaration, MemberRef("notes:b", page.id(), position, 1))
            for position in (ended, 1 - ended)
        )
        with pytest.raises(ClosedError):
            late.add(notes("c"))
        assert at_work.add(notes("c")) == 1
        assert NOTES.progress("b").members == 3


def deliveries_of_a_member(world: World) -> tuple[Member, Member]:
    """Start a batch of one member; return it as two deliveries have it."""
    NOTES.populate(world.clients, "b", notes("a"), seal=True)
    [page] = pages_within("notes:b").fetch(keys_only=True)
    ref = MemberRef("notes:b", page.id(), 0, 1)
    first, second = (Member(world.clients, NOTES.declaration, ref) for _ in range(2))
    return first, second


def test_other_members_of_one_delivery_under_one_key_are_an_error(world: World) -> None:
    """F1: as links of a page that are added one by one: the second was lost without a word."""
    with world.context():
        first, second = deliveries_of_a_member(world)

        assert first.add([]) == 0
        assert first.add(notes("c")) == 1
        assert first.add(notes("c")) == 0
        with pytest.raises(DifferentWorkError):
            first.add(notes("d"))
        assert first.add(notes("d"), idempotency_key="d") == 1
        assert second.add([]) == 0
        for _ in range(2):
            assert second.add(notes("e")) == 0  # It may say something else in each delivery.
        with pytest.raises(DifferentWorkError):
            second.add(notes("f"))
        assert NOTES.progress("b").members == 3


def test_a_member_becomes_one_set_of_members_in_a_delivery(world: World) -> None:
    """F1: as `nest` in a loop."""
    with world.context():
        first, second = deliveries_of_a_member(world)

        child = first.nest(NOTES, notes("c"))
        assert first.nest(NOTES, notes("c")) == child
        with pytest.raises(DifferentWorkError):
            first.nest(NOTES, notes("d"))
        for _ in range(2):
            assert second.nest(NOTES, notes("e")) == child
        with pytest.raises(DifferentWorkError):
            second.nest(NOTES, notes("f"))
        assert NOTES.progress(child).members == 1


@pytest.mark.parametrize("position", [-1, 1, 10**6])
def test_a_position_beyond_its_page_is_no_member(position: int) -> None:
    """F1: an end that names one changes nothing; Python would count from the end."""
    page = BatchPage(letters=".")

    assert page.is_open(0, 1)
    assert not page.is_open(position, 1)


def test_a_member_that_has_failed_is_open_in_later_generations_alone() -> None:
    """F1: an end of the generation in which it failed, or of one before, comes late."""
    page = BatchPage(letters=".f")
    page.end(0, HAS_FAILED, 2)

    assert [page.is_open(0, generation) for generation in (1, 2, 3)] == [False, False, True]
    assert [page.is_open(1, generation) for generation in (1, 2, 3)] == [False, True, True]
