"""Pull queues over HTTP: who may lease, what a token is worth, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollforward.pull_queues import PullQueue
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.handlers.conftest import app_with
from tests.infra.world import Services, World
from tests.rollforward.flask.acts import one_emulator

WORK, OTHER = PullQueue("work", max_deliveries=1), PullQueue("other")


class Worker:
    """A program somewhere else, with a token of the service account."""

    def __init__(self, services: Services) -> None:
        self.world = World(services, pull_queues=[WORK, OTHER])
        token = self.world.engine.tokens.oidc_token(ACCOUNT, BASE_URL)
        self.headers = {"Authorization": f"Bearer {token}"}

    def post(self, path: str, body: object = None, **headers: str) -> Any:
        url = f"/api/v1/pull/{path}"
        return self.world.app.test_client().post(
            url, json=body, headers={**self.headers, **headers}
        )

    def get(self, path: str) -> Any:
        return self.world.app.test_client().get(f"/api/v1/pull/{path}", headers=self.headers)

    def lease(self, **asked: object) -> list[dict[str, Any]]:
        answer = self.post("work/lease", asked)
        assert answer.status_code == 200, answer.data
        leases: list[dict[str, Any]] = answer.json["leases"]
        return leases


@pytest.fixture
def worker(services: Services) -> Worker:
    return Worker(services)


def test_a_worker_in_any_language_leases_and_acks(worker: Worker) -> None:
    """Added, leased by tag, renewed, acked; an idempotency key adds once."""
    for payload, tag in (("a", "t"), ("b", "t"), ("c", None)):
        answer = worker.post("work/items", {"payload": payload, "tag": tag})
        assert answer.status_code == 201
    once = [
        worker.post("work/items", {"payload": "d"}, **{"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert once[0].json == once[1].json

    leases = worker.lease(limit=10, tag="t")
    assert sorted(each["payload"] for each in leases) == ["a", "b"]
    renewed = worker.post("work/renew", {"tokens": [each["token"] for each in leases]}).json
    old = worker.post("work/ack", {"tokens": [leases[0]["token"]]}).json
    acked = worker.post("work/ack", {"tokens": [each["token"] for each in renewed["leases"]]}).json
    assert (old["lost"], acked["lost"]) == ([leases[0]["id"]], [])
    assert sorted(each["payload"] for each in worker.lease(limit=10)) == ["c", "d"]


@one_emulator
def test_a_released_item_and_a_dead_letter_come_back(worker: Worker) -> None:
    worker.post("work/items", {"payload": "a"})
    [lease] = worker.lease(oldest_tag=True) or worker.lease()
    assert worker.post("work/release", {"tokens": [lease["token"]]}).status_code == 204
    assert worker.lease() == []  # Delivered once, which is all that this queue allows.

    [dead] = worker.get("work/dead-letters").json["dead_letters"]
    assert (dead["payload"], dead["deliveries"]) == ("a", 1)
    assert worker.post(f"work/dead-letters/{dead['id']}/replay").status_code == 204
    assert worker.post(f"work/dead-letters/{dead['id']}/replay").status_code == 404
    assert worker.post(f"work/dead-letters/{'x' * 1_600}/replay").status_code == 404
    assert [each["payload"] for each in worker.lease()] == ["a"]


@one_emulator
def test_each_call_passes_on_how_long(worker: Worker) -> None:
    """An item comes late, a lease lasts, a renewed one likewise, and a released item comes back."""

    def leased(**asked: object) -> list[dict[str, Any]]:
        leases: list[dict[str, Any]] = worker.post("other/lease", asked).json["leases"]
        return leases

    def comes_after(seconds: float) -> None:
        worker.world.clock.sleep(seconds - 1)
        assert leased() == []
        worker.world.clock.sleep(2)

    worker.post("other/items", {"payload": "a", "delay_s": 100})
    comes_after(100)
    assert len(leased(lease_s=200)) == 1
    comes_after(200)
    [lease] = leased()
    worker.post("other/renew", {"tokens": [lease["token"]], "lease_s": 300})
    comes_after(300)
    [lease] = leased()
    worker.post("other/release", {"tokens": [lease["token"]], "delay_s": 400})
    comes_after(400)

    assert [each["deliveries"] for each in leased()] == [4]


@one_emulator
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_of_two_tokens_of_an_item_the_newest_counts(worker: Worker, order: slice) -> None:
    worker.post("work/items", {"payload": "a"})
    old = worker.lease()
    new = worker.post("work/renew", {"tokens": [old[0]["token"]]}).json["leases"]

    tokens = [each["token"] for each in (*old, *new)][order]
    assert worker.post("work/ack", {"tokens": tokens}).json == {"lost": []}
    assert worker.post("work/ack", {"tokens": [new[0]["token"]]}).json == {"lost": []}


@one_emulator
def test_nobody_without_our_token_gets_in(worker: Worker) -> None:
    """S1: the same empty 403, whether the queue exists or not, and nothing changes."""
    for headers in ({}, {"Authorization": "Bearer x"}, {"X-AppEngine-QueueName": "default"}):
        worker.headers = headers
        for path in ("work/items", "work/lease", "nosuch/lease", "work/ack", "work/renew"):
            answer = worker.post(path, {"payload": "x"})
            assert (answer.status_code, answer.data) == (403, b"")
        assert worker.get("work/dead-letters").status_code == 403


@one_emulator
def test_a_token_is_good_for_its_own_queue_only(worker: Worker) -> None:
    """S14: a lease cannot be made up, changed, or taken to another queue."""
    worker.post("work/items", {"payload": "a"})
    [lease] = worker.lease()
    token = lease["token"]

    for path, wrong in (("other", token), ("work", token[:-1]), ("work", "x"), ("work", "")):
        for call in ("ack", "renew", "release"):
            assert worker.post(f"{path}/{call}", {"tokens": [wrong]}).status_code == 400
    assert worker.post("work/ack", {"tokens": [token, token]}).json == {"lost": []}


@one_emulator
def test_a_lease_outlives_a_change_of_keys(worker: Worker) -> None:
    """S14: the newest key signs its token, and tokens of the others are read."""
    old, new = worker.world.settings.secret_keys[0], "brand-new-0123456789-abcdefghij-KLM"

    def deploy(*keys: str) -> None:
        settings = replace(worker.world.settings, secret_keys=keys)
        worker.world.app = app_with(worker.world, settings=settings)

    worker.post("work/items", {"payload": "a"})
    [before] = worker.lease()
    deploy(new, old)
    answer = worker.post("work/renew", {"tokens": [before["token"]]})
    [after] = answer.json["leases"]
    deploy(new)

    assert worker.post("work/ack", {"tokens": [before["token"]]}).status_code == 400
    assert worker.post("work/ack", {"tokens": [after["token"]]}).json == {"lost": []}


@one_emulator
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("items", {}),
        ("items", {"payload": 5}),
        ("items", {"payload": "x" * 100_001}),
        ("items", {"payload": "x", "tag": ""}),
        ("items", {"payload": "x", "delay_s": -1}),
        ("items", {"payload": "x", "more": 1}),
        ("items", []),
        ("lease", {"limit": 0}),
        ("lease", {"limit": 201}),
        ("lease", {"limit": "5"}),
        ("lease", {"limit": True}),
        ("lease", {"lease_s": 0.5}),
        ("lease", {"tag": "t", "oldest_tag": True}),
        ("ack", {"tokens": []}),
        ("ack", {"tokens": ["x"] * 201}),
        ("ack", {"tokens": "x"}),
    ],
)
def test_bad_requests_are_refused_with_a_reason(worker: Worker, path: str, body: object) -> None:
    """What is wrong is named, in a problem, and nothing is stored."""
    answer = worker.post(f"work/{path}", body)

    assert answer.status_code == 400
    assert answer.content_type == "application/problem+json"
    assert len(answer.json["detail"]) > 10
    assert worker.lease() == []


@one_emulator
def test_each_number_may_be_at_its_limit(worker: Worker) -> None:
    """Of items of 30 days, and leases from a second to a week, up to 200 at once."""
    worker.post("other/items", {"payload": "a"})
    for seconds in (1, 7 * 24 * 3600):
        leased = worker.post("other/lease", {"lease_s": seconds, "limit": 200})
        [lease] = leased.json["leases"]
        renewed = worker.post("other/renew", {"tokens": [lease["token"]], "lease_s": seconds})
        [lease] = renewed.json["leases"]
        body = {"tokens": [lease["token"]] * 200, "delay_s": 30 * 24 * 3600}
        assert worker.post("other/release", body).status_code == 204
        for path, number in (("renew", 0.5), ("release", -1), ("release", 31 * 24 * 3600)):
            name = "lease_s" if path == "renew" else "delay_s"
            refused = worker.post(f"other/{path}", {"tokens": [lease["token"]], name: number})
            assert refused.status_code == 400
        worker.world.clock.sleep(30 * 24 * 3600 + 1)


@one_emulator
def test_other_refusals(worker: Worker) -> None:
    assert worker.post("nosuch/lease", {}).status_code == 404
    worker.post("work/items", {"payload": "a"}, **{"Idempotency-Key": "k"})
    answer = worker.post("work/items", {"payload": "b"}, **{"Idempotency-Key": "k"})
    assert answer.status_code == 422
    as_text = worker.world.app.test_client().post(
        "/api/v1/pull/work/lease", data="{}", headers=worker.headers
    )
    assert as_text.status_code == 415
    large = worker.post("work/ack", {"tokens": ["x" * 100_001]})
    assert large.status_code == 413


def test_an_app_without_pull_queues_has_no_such_routes(world: World) -> None:
    rules = {rule.rule for rule in world.app.url_map.iter_rules()}
    assert not [rule for rule in rules if rule.startswith("/api/v1/pull")]
