"""The API of sums: batches of additions, in one request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from werkzeug.test import TestResponse

from pipelines.sums import sums
from rollforward.fork_join.insert import MAX_ATTEMPTS
from rollforward.testing.injection import ERROR
from tests.handlers.sums.test_api import check_problem
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

PATH = "/api/v1/sums/visitors"
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def api(world: World) -> Any:
    """A client without cookies, and a sum."""
    with world.context():
        sums.create("visitors")
    return world.app.test_client(use_cookies=False)


def send(api: Any, items: list[Any], key: str | None = None) -> TestResponse:
    headers = {"Idempotency-Key": key} if key is not None else {}
    response: TestResponse = api.post(f"{PATH}/batch", json={"items": items}, headers=headers)
    return response


def send_lines(api: Any, *lines: str, **headers: str) -> TestResponse:
    response: TestResponse = api.post(
        f"{PATH}/batch", data="".join(f"{line}\n" for line in lines), headers={**NDJSON, **headers}
    )
    return response


def total(world: World, api: Any) -> tuple[int, int]:
    world.settle()
    status = api.get(PATH).json
    return status["total"], status["items"]


def test_a_thousand_additions_are_accepted_in_one_request(world: World, api: Any) -> None:
    """An answer for each; sent again under its key it counts once."""
    items = [{"amount": number} for number in range(1_000)]
    first, again = (send(api, items, "k") for _ in range(2))

    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json is not None
    assert again.json is not None
    assert first.json["accepted"] == again.json["accepted"] == 1_000
    assert len({item["ref"] for item in first.json["items"]}) == 1_000
    assert {item["repeat"] for item in first.json["items"]} == {False}
    assert {item["repeat"] for item in again.json["items"]} == {True}
    assert total(world, api) == (499_500, 1_000)


def test_lines_of_json_are_a_batch(world: World, api: Any) -> None:
    """With and without a last line feed, and with those of Windows."""
    assert send_lines(api, '{"amount": 5}', '{"amount": 6}').status_code == 202
    bare = api.post(f"{PATH}/batch", data='{"amount": 7}\r\n{"amount": 8}', headers=NDJSON)
    assert bare.status_code == 202
    assert total(world, api) == (26, 4)


def test_items_with_keys_are_answered_each_for_itself(world: World, api: Any) -> None:
    """A repeat, and a key that was used for another amount."""
    first = send(api, [{"amount": 1, "key": "a"}, {"amount": 2, "key": "b"}])
    second = send(
        api, [{"amount": 1, "key": "a"}, {"amount": 3, "key": "b"}, {"amount": 4, "key": "c"}]
    )

    assert (first.status_code, second.status_code) == (202, 207)
    assert second.json is not None
    repeat, different, new = second.json["items"]
    assert (repeat["accepted"], repeat["repeat"]) == (True, True)
    assert (different["accepted"], different["status"]) == (False, 422)
    assert (new["accepted"], new["repeat"]) == (True, False)
    assert second.json["accepted"] == 2
    assert total(world, api) == (1 + 2 + 4, 3)


def test_a_batch_has_a_key_for_each_item_or_for_none(world: World, api: Any) -> None:
    """Sent again after a lost reply, an item without a key would count twice."""
    mixed = [{"amount": 1, "key": "a"}, {"amount": 20}, {"amount": 3, "key": "b"}]
    for response in (send(api, mixed), send_lines(api, *map(json.dumps, mixed))):
        assert "line 2" in check_problem(response, 400)
    assert total(world, api) == (0, 0)


def test_a_batch_that_datastore_does_not_take_is_503(world: World, api: Any) -> None:
    """With a time to wait; sent again it counts once."""
    items = [{"amount": 1, "key": "a"}, {"amount": 2, "key": "b"}]
    world.plan.break_next("Commit", ERROR, MAX_ATTEMPTS)
    response = send(api, items)
    check_problem(response, 503)
    assert "Retry-After" in response.headers
    assert send(api, items).status_code == 202
    assert total(world, api) == (3, 2)


def test_an_item_without_a_known_answer_hides_no_others(
    world: World, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those are accepted."""
    add_each = sums.add_each

    def failing(*args: Any) -> list[Any]:
        return [*add_each(*args)[:-1], ValueError("unheard of")]

    monkeypatch.setattr(sums, "add_each", failing)
    response = send(api, [{"amount": 1, "key": "a"}, {"amount": 2, "key": "b"}])
    assert response.status_code == 207
    assert response.json is not None
    accepted, failed = response.json["items"]
    assert accepted["accepted"]
    assert failed == {"accepted": False, "status": 500, "detail": "It was not accepted."}


def test_a_bad_item_is_named_by_its_line_and_nothing_is_added(world: World, api: Any) -> None:
    """Whichever form the list has; up to twenty are named."""
    bad = [{"amount": 1}, {"amount": "x"}, {"amount": 2, "more": 1}, 7, {"amount": 10**10}]
    for response in (send(api, bad), send_lines(api, *map(json.dumps, bad))):
        detail = check_problem(response, 400)
        assert "line 2, 3, 4, 5" in detail
        assert response.json is not None
        assert [error["line"] for error in response.json["errors"]] == [2, 3, 4, 5]
        assert "amount" in response.json["errors"][0]["detail"]
    many = check_problem(send(api, [{"amount": None}] * 30), 400)
    assert "20, and more" in many
    for line in (
        '{"amount": 1, "amount": 2}',
        "{",
        "NaN",
        '{"amount": 1}{"amount": 2}',
        "\ufeff{}",
    ):
        check_problem(send_lines(api, '{"amount": 1}', line), 400)
    assert total(world, api) == (0, 0)


def test_a_batch_has_a_bounded_size(world: World, api: Any) -> None:
    """No item, too many, too many bytes, no list, both kinds of keys, another type of body."""
    check_problem(send(api, []), 400)
    check_problem(send_lines(api), 400)
    check_problem(send(api, [{"amount": 1}] * 1_001), 413)
    check_problem(send_lines(api, *['{"amount": 1}' + " " * 1_000] * 600), 413)
    check_problem(api.post(f"{PATH}/batch", json=[{"amount": 1}]), 400)
    check_problem(api.post(f"{PATH}/batch", json={"items": [], "more": 1}), 400)
    check_problem(send(api, [{"amount": 1, "key": "a"}], "k"), 400)
    for wrong_key in ("é", "", "  ", "k" * 201, None):
        check_problem(send(api, [{"amount": 1, "key": wrong_key}]), 400)
    check_problem(api.post(f"{PATH}/batch", data="amount=1"), 415)
    check_problem(api.post("/api/v1/sums/no-such/batch", json={"items": [{"amount": 1}]}), 404)
    check_problem(send_lines(api, '{"amount": 1}', **{"Content-Encoding": "gzip"}), 415)
    assert total(world, api) == (0, 0)


def test_a_key_of_a_batch_belongs_to_its_items(world: World, api: Any) -> None:
    """Another batch under it is refused, and changes nothing."""
    assert send(api, [{"amount": 1}], "k").status_code == 202
    check_problem(send(api, [{"amount": 2}], "k"), 422)
    assert total(world, api) == (1, 1)
