"""Tasks enqueued by hand, and dead tasks edited: by a form, once, on record, and never by READ."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html import unescape
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from rollforward.operations import list_audit
from rollforward.operations.replays import DeadTaskRefusedError, replay_dead_task
from rollforward.runtime import Clients
from rollforward.tasks import Task
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import Services
from tests.rollforward.console.conftest import PATH, Desk, desk_with

ROOT = "/rollforward"
SHIP = "/tasks/tests/ship"
EVIL = "<script>alert(1)</script>"


@dataclass(frozen=True)
class Ship:
    """Arguments of each form."""

    order: str
    count: int
    is_express: bool = False
    tags: list[str] = field(default_factory=list)
    weight: float = 1.0


@dataclass
class Shop:
    """A desk whose app ships, and what it has shipped."""

    desk: Desk
    shipped: list[Ship]
    client: FlaskClient

    def get(self, path: str, role: str = "operate") -> TestResponse:
        return self.client.get(ROOT + path, headers={"X-Role": role})

    def send(self, path: str, source: str, /, role: str = "operate", **fields: Any) -> TestResponse:
        """Send the form of a page as a browser would."""
        page = self.get(source).text
        hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
        return self.client.post(ROOT + path, data={**hidden, **fields}, headers={"X-Role": role})

    def audited(self) -> Counter[str]:
        """Return how often each action is on record, with its result."""
        with self.desk.world.context():
            entries, _ = list_audit(limit=50)
            return Counter(f"{entry.action}: {entry.result}" for entry in entries)


@pytest.fixture
def shop(services: Services) -> Shop:
    """A shop with an open browser."""
    shipped: list[Ship] = []

    def ship(clients: Clients, args: Ship) -> None:
        shipped.append(args)

    desk = desk_with(services, Task(SHIP, "default", Ship, ship))
    return Shop(desk, shipped, desk.app.test_client())


FORM = f"/enqueue/task?path={SHIP}"


def test_a_task_is_enqueued_by_a_form_of_its_types(shop: Shop) -> None:
    """Once, however often the form is sent; defaults stand for what is left empty."""
    page = shop.get(FORM).text
    assert "order <span" in page
    assert "list[str], default []" in page

    values = ["A<1", "3", "true", "", ""]
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    for _ in range(2):
        answer = shop.client.post(
            f"{ROOT}/enqueue/task",
            data={**hidden, "value": values},
            headers={"X-Role": "operate"},
        )
        assert answer.status_code == 303
    shop.desk.world.settle()

    assert shop.shipped == [Ship("A<1", 3, is_express=True, tags=[])]
    assert shop.audited()["enqueue task: done"] == 2
    assert SHIP in shop.get("/enqueue").text


def test_a_form_that_is_sent_again_with_other_arguments_is_another_task(shop: Shop) -> None:
    """H8: a browser that goes back shows the form with its key; what it says next is true."""
    page = shop.get(FORM).text
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    for order in ("A", "B", "B"):
        answer = shop.client.post(
            f"{ROOT}/enqueue/task",
            data={**hidden, "value": [order, "3", "true", "", ""]},
            headers={"X-Role": "operate"},
        )
        assert answer.status_code == 303
    shop.desk.world.settle()

    assert sorted(ship.order for ship in shop.shipped) == ["A", "B"]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (["A", "three", "true", "", ""], "count"),
        (["A", "1.5", "true", "", ""], "count"),
        (["A", "", "true", "", ""], "count"),
        (["A", "3", "yes", "", ""], "is_express"),
        (["A", "3", "true", "[1]", ""], "tags"),
        (["A", "3", "true", EVIL, ""], "tags"),
        (["A", "3", "true", "[" * 5_000, ""], "tags"),
        (["A", "3", "true", "", "NaN"], "weight"),
        (["A", "3", "true", "", "1e999"], "weight"),
        (["A", "3"], "value"),
        ([], "value"),
    ],
)
def test_a_bad_argument_is_refused_with_its_name(shop: Shop, values: list[str], name: str) -> None:
    """400, what was typed stays, and nothing is enqueued."""
    answer = shop.send("/enqueue/task", FORM, value=values)
    shop.desk.world.settle()

    assert answer.status_code == 400
    assert f'role="alert">{name}' in answer.text
    assert EVIL not in answer.text
    assert shop.shipped == []
    assert shop.audited() == {}


def test_the_size_of_an_argument_is_bounded(shop: Shop) -> None:
    """By the field, before anything reads it."""
    answer = shop.send("/enqueue/task", FORM, value=["x" * 20_001, "3", "true", "", ""])

    assert answer.status_code == 413
    assert "value must have at most 20,000" in answer.text


@pytest.mark.parametrize("path", ["/tasks/dead/replay", "/nothing", "", "\x00"])
def test_a_task_of_a_pattern_is_not_enqueued_by_hand(shop: Shop, path: str) -> None:
    """Nor one that is not there."""
    answer = shop.send("/enqueue/task", FORM, path=path, value=["x"])

    assert answer.status_code == 404
    assert shop.get(f"/enqueue/task?path={path}").status_code == 404


@pytest.mark.parametrize("delay", ["-1", "soon", "1e9", str(31 * 86_400)])
def test_a_bad_delay_is_refused(shop: Shop, delay: str) -> None:
    """By the name of its field; what was typed stays."""
    answer = shop.send("/enqueue/task", FORM, value=["Order 7", "3", "true", "", ""], delay_s=delay)

    assert answer.status_code == 400
    assert 'role="alert">delay_s' in answer.text
    assert "Order 7" in answer.text


def test_a_delay_may_be_as_long_as_the_refusal_of_a_longer_one_says(shop: Shop) -> None:
    """30 days; those of more than 11 were said to be no number."""
    values = ["A", "3", "true", "", ""]
    answer = shop.send("/enqueue/task", FORM, value=values, delay_s=str(30 * 86_400))

    assert answer.status_code == 303


def test_a_dead_task_is_edited_and_replayed_once(shop: Shop) -> None:
    """With the arguments of the form, which begin as those that failed."""
    body = b'{"order": "A1", "count": "three", "is_express": true}'
    dead_id = shop.desk.give_up("x", path=SHIP, body=body)
    source = f"/dead/edit?id={dead_id}"
    assert "&#34;three&#34;" in shop.get(source).text

    bad = shop.send("/dead/edit", source, value=["A1", "three", "true", "[]", ""])
    sent = shop.send("/dead/edit", source, value=["A1", "3", "true", '["late"]', ""])
    shop.desk.world.settle()
    again = shop.send("/dead/edit", FORM, id=dead_id, value=["A1", "3", "true", "[]", ""])

    assert (bad.status_code, sent.status_code) == (400, 303)
    assert 'role="alert">count' in bad.text
    assert shop.shipped == [Ship("A1", 3, is_express=True, tags=["late"])]
    assert again.status_code == 409
    assert shop.audited() == {"edit and replay dead task: done": 1}
    with shop.desk.world.context():
        dead = DeadTask.get_by_id(dead_id)
        assert (dead.resolved, dead.replays) == (True, 1)
        assert '"late"' in dead.body


def test_a_dead_task_that_was_replayed_gets_no_other_arguments(shop: Shop) -> None:
    """Two who edit it at once: the second one is told, and the first one's reply may be lost."""
    body = b'{"order": "A1", "count": 1}'
    dead_id = shop.desk.give_up("x", path=SHIP, body=body)
    clients, first = shop.desk.world.clients, b'{"order": "A1", "count": 2}'
    with shop.desk.world.context():
        replay_dead_task(clients, dead_id, args=first)
        replay_dead_task(clients, dead_id, args=first)
        with pytest.raises(DeadTaskRefusedError, match="already"):
            replay_dead_task(clients, dead_id, args=b'{"order": "A1", "count": 3}')
    shop.desk.world.settle()
    assert shop.shipped == [Ship("A1", 2)]


def test_lines_of_an_argument_are_replayed_as_they_were(shop: Shop) -> None:
    """A browser sends each end of a line as two letters, and a form drops the first one."""
    body = b'{"order": "\\na\\nb", "count": 1, "is_express": true}'
    dead_id = shop.desk.give_up("x", path=SHIP, body=body)
    source = f"/dead/edit?id={dead_id}"
    (shown,) = re.findall(r'name="value" rows="1"[^>]*>([^<]*)</textarea>', shop.get(source).text)[
        :1
    ]
    assert shown == "\n\na\nb"

    typed = shown.removeprefix("\n").replace("\n", "\r\n")
    shop.send("/dead/edit", source, value=[typed, "1", "true", "[]", ""])
    shop.desk.world.settle()
    assert [args.order for args in shop.shipped] == ["\na\nb"]


def test_an_argument_is_edited_in_its_own_letters(shop: Shop) -> None:
    """Also in a list: nobody mends a word that reads Gr\\u00fcn."""
    body = '{"order": "Grün", "count": 1, "is_express": true, "tags": ["Grün"]}'
    dead_id = shop.desk.give_up("x", path=SHIP, body=body.encode())

    text = unescape(shop.get(f"/dead/edit?id={dead_id}").text)

    assert re.findall(r"(\S*Grün\S*)</textarea>", text) == ["Grün", '["Grün"]']


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[1]", b"", b'{"other": 1}'])
def test_a_dead_task_whose_arguments_are_of_no_such_type_gets_an_empty_form(
    shop: Shop, body: bytes
) -> None:
    """It can be filled in: that is what editing is for."""
    dead_id = shop.desk.give_up("x", path=SHIP, body=body)

    assert shop.get(f"/dead/edit?id={dead_id}").status_code == 200


def test_a_dead_task_of_no_known_task_is_not_edited(shop: Shop) -> None:
    """409 with the reason; an unknown one is 404."""
    dead_id = shop.desk.give_up("x", path="/tasks/gone")

    assert shop.get(f"/dead/edit?id={dead_id}").status_code == 409
    assert shop.get("/dead/edit?id=none").status_code == 404
    known = shop.desk.give_up("y", path=SHIP, body=b'{"order": "A1", "count": 1}')
    sent = shop.send("/dead/edit", f"/dead/edit?id={known}", id="none", value=["A1", "1"])
    assert sent.status_code == 404


def test_a_reader_enqueues_and_edits_nothing(shop: Shop) -> None:
    """By no form, with a token that is right; the pages have no button."""
    dead_id = shop.desk.give_up("x")
    edit = f"/dead/edit?id={dead_id}"

    answers = [
        shop.send("/enqueue/task", FORM, role="read", value=["A", "3", "true", "", ""]),
        shop.send("/dead/edit", edit, role="read", value=["y"]),
    ]
    shop.desk.world.settle()

    assert [answer.status_code for answer in answers] == [403, 403]
    assert (shop.shipped, shop.desk.done) == ([], {})
    for path in (FORM, edit):
        assert "role can only read" in shop.get(path, role="read").text
    assert (
        shop.desk.ask(f"{ROOT}/enqueue/task", method="POST", data={"path": SHIP}).status_code == 403
    )


def test_code_opens_in_the_editor_on_this_machine_alone(shop: Shop) -> None:
    """From the list of tasks; deployed, no page names a file."""
    local = shop.get("/enqueue").text
    shop.desk.app.extensions["wiring"].settings.__dict__["platform"] = "cloudrun"
    deployed = shop.get("/enqueue").text

    assert re.search(r'href="vscode://file//[^"]+/test_enqueue\.py:\d+"', local)
    assert "vscode:" not in deployed
    assert PATH in deployed
