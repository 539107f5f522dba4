"""The audit trail: an entry for each change, and what an operator is told without one."""

from __future__ import annotations

import pytest
from google.api_core.exceptions import ServiceUnavailable

from rollforward.operations import audit, list_audit, recorded
from rollforward.operations.entities import BEGUN, AuditEntry
from tests.rollforward.console.conftest import API, Desk


def test_a_change_is_made_although_its_result_cannot_be_recorded(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H8: an operator who is told to try again would do it twice; the entry is there."""
    dead_id = desk.give_up("x")
    put, writes = audit._put, list[str]()

    def refuse_results(entry: AuditEntry) -> None:
        writes.append(entry.result)
        if entry.result != BEGUN:
            raise ServiceUnavailable("the store is away")  # type: ignore[no-untyped-call]
        put(entry)

    monkeypatch.setattr(audit, "_put", refuse_results)

    answer = desk.change(f"/dead-tasks/{dead_id}:delete")

    assert (answer.status_code, answer.json["result"]) == (200, "deleted")
    [entry] = desk.ask(f"{API}/audit").json["entries"]
    assert (entry["action"], entry["result"]) == ("delete dead task", BEGUN)
    assert "done" in writes


def test_a_change_without_an_entry_is_not_made(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """H8: and the operator is told to try again."""
    dead_id = desk.give_up("x")

    def refuse(entry: AuditEntry) -> None:
        raise ServiceUnavailable("the store is away")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(audit, "_put", refuse)
    answer = desk.change(f"/dead-tasks/{dead_id}:delete")

    assert answer.status_code == 503
    assert [row["id"] for row in desk.ask(f"{API}/dead-tasks").json["dead_tasks"]] == [dead_id]


def test_a_change_that_the_end_of_its_process_cuts_off_is_not_done(desk: Desk) -> None:
    """H8: nobody knows its result, so the entry says that it has begun."""
    clients = desk.world.clients
    with desk.world.context():
        with (
            pytest.raises(SystemExit),
            recorded(clients, operator="a", role="operate", action="x", target="y"),
        ):
            raise SystemExit
        [entry], _ = list_audit(limit=2)

    assert (entry.result, entry.ended) == (BEGUN, None)


def test_entries_of_one_instant_are_on_one_page(desk: Desk) -> None:
    """More of them than a page has: the next one begins behind all of them."""
    clients = desk.world.clients
    with desk.world.context():
        for number in range(3):
            with recorded(clients, operator="a", role="operate", action="x", target=str(number)):
                pass
        desk.world.clock.sleep(1)
        with recorded(clients, operator="a", role="operate", action="x", target="latest"):
            pass

        found, before = list[str](), None
        while True:
            entries, before = list_audit(until=before, limit=2)
            found += [entry.target for entry in entries]
            if before is None:
                break

    assert sorted(found) == ["0", "1", "2", "latest"]


def test_a_page_of_entries_has_as_many_as_it_was_asked_for(desk: Desk) -> None:
    """The newest first, each once."""
    clients = desk.world.clients
    pages, before = list[list[str]](), None
    with desk.world.context():
        for number in range(5):
            with recorded(clients, operator="a", role="operate", action="x", target=str(number)):
                desk.world.clock.sleep(1)
        while True:
            entries, before = list_audit(until=before, limit=2)
            pages.append([entry.target for entry in entries])
            if before is None:
                break

    assert pages == [["4", "3"], ["2", "1"], ["0"]]
