"""Dead tasks over the API: listed in pages, filtered, replayed once and deleted."""

from __future__ import annotations

import datetime
from collections import Counter

import pytest

from rollforward.operations import UnknownDeadTaskError
from rollforward.operations.entities import AuditEntry
from rollforward.operations.replays import get_dead_task
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.dead_tasks import MAX_NAME_BYTES
from tests.rollforward.console.conftest import API, Desk


def test_dead_tasks_are_listed_newest_first_in_pages(desk: Desk) -> None:
    """Each once, by cursor, whatever is given up between two pages."""
    for tag in "abcde":
        desk.give_up(tag)
        desk.world.clock.sleep(1)

    seen: list[str] = []
    cursor = ""
    for _ in range(3):
        page = desk.ask(f"{API}/dead-tasks?limit=2&cursor={cursor}").json
        seen += [row["task_name"] for row in page["dead_tasks"]]
        cursor = page["next_cursor"]
        desk.give_up(f"new-{len(seen)}")
        if cursor is None:
            break

    assert seen == ["t-e", "t-d", "t-c", "t-b", "t-a"]


def test_a_list_is_filtered_by_pattern_queue_error_and_age(desk: Desk) -> None:
    """And by several of them at once."""
    desk.give_up("old", reason="KeyError: x")
    desk.world.clock.sleep(3600)
    now = desk.world.clock.now()
    desk.give_up("mail", queue="mail")
    desk.give_up("both", queue="mail", reason="gave up. Traceback", error="KeyError")
    desk.give_up("page", path="/tasks/continuations/ship")

    def listed(query: str) -> set[str]:
        rows = desk.ask(f"{API}/dead-tasks?{query}").json["dead_tasks"]
        return {row["task_name"].removeprefix("t-") for row in rows}

    half = (now - datetime.timedelta(minutes=30)).isoformat().replace("+", "%2B")
    assert listed("queue=mail") == {"mail", "both"}
    assert listed("error=KeyError") == {"old", "both"}
    assert listed("queue=mail&error=KeyError") == {"both"}
    assert listed("pattern=continuations") == {"page"}
    assert listed("pattern=tasks&error=ValueError&queue=mail") == {"mail"}
    assert listed(f"until={half}") == {"old"}
    assert listed(f"since={half}") == {"mail", "both", "page"}
    assert listed(f"since={half}&error=KeyError") == {"both"}


def test_one_dead_task_is_shown_whole(desk: Desk) -> None:
    """With its body, its reason to the end, and how often it was delivered."""
    dead_id = desk.give_up("x", reason="gave up after 3 failures. " + "x" * 900, deliveries=3)

    shown = desk.ask(f"{API}/dead-tasks/{dead_id}").json

    assert (shown["body"], shown["deliveries"], len(shown["reason"])) == ('{"tag": "x"}', 3, 926)


def test_a_list_names_the_error_and_no_traceback(desk: Desk) -> None:
    """It showed the frames of the library, the same ones for each dead task."""
    stack = "".join(f'  File "a.py", line {n}, in f\n    f()\n' for n in range(30))
    head = "gave up after 4 failures. Traceback (most recent call last):\n"
    desk.give_up("x", reason=f"{head}{stack}ValueError: no mail 13\n")

    [row] = desk.ask(f"{API}/dead-tasks").json["dead_tasks"]

    assert row["reason"] == "gave up after 4 failures. ValueError: no mail 13"


def test_a_replay_runs_the_task_once_however_often_it_is_asked_for(desk: Desk) -> None:
    """The second answer is the first one's, and both are on record."""
    dead_id = desk.give_up("x")

    answers = [desk.change(f"/dead-tasks/{dead_id}:replay") for _ in range(2)]
    desk.world.settle()

    assert [answer.json["result"] for answer in answers] == ["replayed", "replayed"]
    assert desk.done == Counter({"x": 1})
    assert desk.ask(f"{API}/dead-tasks").json["dead_tasks"] == []
    entries = desk.ask(f"{API}/audit").json["entries"]
    assert [(row["who"], row["action"], row["target"], row["result"]) for row in entries] == [
        ("operate@example.com", "replay dead task", dead_id, "done")
    ] * 2


def test_a_deleted_dead_task_is_gone_and_does_nothing(desk: Desk) -> None:
    """A second time there is none."""
    dead_id = desk.give_up("x")

    first, second = (desk.change(f"/dead-tasks/{dead_id}:delete") for _ in range(2))
    desk.world.settle()

    assert (first.json["result"], second.status_code) == ("deleted", 404)
    assert desk.done == Counter()


def test_a_dead_task_that_another_operator_replays_is_not_deleted(desk: Desk) -> None:
    """The page of the second one shows it open still: its work is done, and nothing else is said.

    "Deleted" promised that the work would not be done.
    """
    dead_id = desk.give_up("x")

    desk.change(f"/dead-tasks/{dead_id}:replay")
    late = desk.change(f"/dead-tasks/{dead_id}:delete")
    desk.world.settle()

    assert (late.status_code, desk.done) == (409, Counter({"x": 1}))
    assert late.json["detail"] == "It cannot be deleted: it was replayed already."


def test_selected_dead_tasks_are_replayed_by_a_run(desk: Desk) -> None:
    """The others stay; the run says what became of each."""
    ids = {tag: desk.give_up(tag) for tag in "abc"}

    answer = desk.change("/dead-tasks:replay", {"ids": [ids["a"], ids["b"], "nothing"]})
    desk.world.settle()

    assert answer.status_code == 202
    run = desk.ask(f"{API}/runs/continuations/{answer.json['run']['id']}").json["run"]
    assert (run["state"], run["counts"]["done"], run["counts"]["skipped"]) == ("finished", 2, 1)
    assert desk.done == Counter({"a": 1, "b": 1})


def test_a_task_that_the_app_does_not_know_is_not_replayed(desk: Desk) -> None:
    """It stays where it is; alone it is a conflict, in a run a failed item."""
    unknown = desk.give_up("x", path="/tasks/of/another/app")
    desk.give_up("y")

    alone = desk.change(f"/dead-tasks/{unknown}:replay")
    run_id = desk.change("/dead-tasks:replay", {"filter": {}}).json["run"]["id"]
    desk.world.settle()

    assert (alone.status_code, desk.done) == (409, Counter({"y": 1}))
    issues = desk.ask(f"{API}/runs/continuations/{run_id}").json["issues"]
    assert [(issue["item"], issue["outcome"]) for issue in issues] == [(unknown, "failed")]
    [left] = desk.ask(f"{API}/dead-tasks").json["dead_tasks"]
    assert left["id"] == unknown


def test_an_id_that_no_dead_task_can_have_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datastore takes no name that is empty, or too long: an error 500, in place of 404."""
    asked: list[str] = []
    monkeypatch.setattr(DeadTask, "get_by_id", lambda dead_id: asked.append(dead_id))

    for dead_id in ("", "é" * (MAX_NAME_BYTES // 2) + "x", "\ud800", "x" * MAX_NAME_BYTES):
        with pytest.raises(UnknownDeadTaskError):
            get_dead_task(dead_id)

    assert asked == ["x" * MAX_NAME_BYTES]


def test_a_bulk_change_with_one_key_is_one_run(desk: Desk) -> None:
    """Its reply was lost, and the program repeats it."""
    desk.give_up("x")
    headers = {"Idempotency-Key": "k1"}

    ids = {
        desk.change("/dead-tasks:replay", {"filter": {}}, headers=headers).json["run"]["id"]
        for _ in range(2)
    }

    assert len(ids) == 1


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=51", "limit=x", "cursor=x", "since=yesterday", "since=2030-01-01"],
)
def test_a_query_that_cannot_be_understood_is_refused(desk: Desk, query: str) -> None:
    """As a problem that says which part."""
    answer = desk.ask(f"{API}/dead-tasks?{query}")

    assert (answer.status_code, answer.content_type) == (400, "application/problem+json")
    assert answer.json["detail"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/dead-tasks/x:explode", {}, 404),
        ("/dead-tasks/x:replay", {}, 404),
        ("/dead-tasks/x:replay", {"force": True}, 400),
        ("/dead-tasks:explode", {"filter": {}}, 404),
        ("/dead-tasks:replay", {}, 400),
        ("/dead-tasks:replay", {"ids": []}, 400),
        ("/dead-tasks:replay", {"ids": ["x"], "filter": {}}, 400),
        ("/dead-tasks:replay", {"ids": ["x"] * 101}, 400),
        ("/dead-tasks:replay", {"ids": [""]}, 400),
        ("/dead-tasks:replay", {"filter": {"color": "red"}}, 400),
        ("/dead-tasks:replay", {"filter": {"since": "x"}}, 400),
        ("/dead-tasks:replay", [], 400),
        ("/runs/continuations/x:cancel", {}, 404),
        ("/runs/nothing/x:cancel", {}, 404),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(
    desk: Desk, path: str, body: object, status: int
) -> None:
    """And says why; no run begins."""
    desk.give_up("y")

    answer = desk.change(path, body)

    assert (answer.status_code, answer.content_type) == (status, "application/problem+json")
    desk.world.settle()
    assert desk.done == Counter()
    assert len(desk.ask(f"{API}/dead-tasks").json["dead_tasks"]) == 1
    with desk.world.context():
        assert all(entry.result != "done" for entry in AuditEntry.query().fetch())


def test_queues_and_their_tasks_are_listed(desk: Desk) -> None:
    """As Cloud Tasks has them."""
    dead_id = desk.give_up("x")
    desk.change(f"/dead-tasks/{dead_id}:replay")

    queues = desk.ask(f"{API}/queues").json["queues"]
    tasks = desk.ask(f"{API}/tasks?queue=default").json["tasks"]

    assert ("default", "running") in [(queue["name"], queue["state"]) for queue in queues]
    assert [task["path"] for task in tasks] == [PATH_OF_TASK]
    assert desk.ask(f"{API}/tasks?queue=nosuch").status_code == 404
    assert desk.ask(f"{API}/tasks?queue=default&cursor=x").status_code == 400


PATH_OF_TASK = "/tasks/tests/act"
