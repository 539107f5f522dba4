"""Streams over HTTP: who may push and read, and what is refused."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import main
from rollforward.registry import Registry
from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.model.records import MAX_KEY_BYTES, MAX_VALUE_BYTES
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.infra.world import Services, World
from tests.rollforward.flask.acts import one_emulator
from tests.rollforward.streams.harness import stream_world, windows
from tests.rollforward.streams.storage.test_sizes import readers


class Program:
    """A program somewhere else, with a token of the service account."""

    def __init__(self, services: Services, *pipelines: Pipeline) -> None:
        self.world = stream_world(services, *pipelines)
        token = self.world.engine.tokens.oidc_token(ACCOUNT, BASE_URL)
        self.headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str, **headers: str) -> Any:
        return self.world.app.test_client().get(
            f"/api/v1/streams/{path}", headers={**self.headers, **headers}
        )

    def post(self, path: str, body: object, **headers: str) -> Any:
        return self.world.app.test_client().post(
            f"/api/v1/streams/{path}", json=body, headers={**self.headers, **headers}
        )

    def send(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        return self.world.app.test_client().open(
            f"/api/v1/streams/{path}", method=method, json=body, headers={**self.headers, **headers}
        )


@pytest.fixture
def program(services: Services) -> Program:
    return Program(services)


@one_emulator
def test_a_program_in_any_language_pushes_and_may_repeat(program: Program) -> None:
    """Each record counts once; the answer says how far the source is."""
    body = {
        "records": [{"id": "a", "value": {"path": "/"}, "timestamp_ms": 1_000}],
        "watermark": 60_000,
    }
    for _ in range(2):
        answer = program.post("minutes/requests", body)
        assert answer.status_code == 202
        assert answer.json["watermark"] == 60_000
    program.world.settle()
    assert windows(program.world) == {"0": [["/", 1]]}


@one_emulator
def test_a_program_is_told_that_a_part_was_accepted(services: Services) -> None:
    """S29: a record that no commit holds for all of its readers takes no other with it."""
    program = Program(services, Pipeline("many", *readers(10), sources=[PushSource("in")]))
    large = '"' * (MAX_VALUE_BYTES // 2 - 100)
    records = [
        {"id": id_, "value": {"k": "a", "text": text}, "timestamp_ms": 1}
        for id_, text in (("a", ""), ("b", large))
    ]

    answer = program.post("many/in", {"records": records})
    alone = program.post("many/in", {"records": records[1:]})

    assert (answer.status_code, alone.status_code) == (400, 400)
    assert "A part was accepted" in answer.text
    assert "No record was accepted" in alone.text
    assert program.get("many").json["sources"]["in"]["records"] == 1


@one_emulator
def test_who_proves_nothing_is_refused(program: Program) -> None:
    """S1: and nothing changes."""
    body = {"records": [{"id": "a", "value": {"path": "/"}, "timestamp_ms": 1}]}
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer x"}):
        assert program.post("minutes/requests", body, **headers).status_code == 403
        for path in ("minutes", "minutes/hits/states?key=/"):
            assert program.get(path, **headers).status_code == 403
    assert windows(program.world) == {}


@one_emulator
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("none/requests", {"records": []}, 404),
        ("minutes/hits", {"records": []}, 404),
        ("minutes/requests", {"records": [], "process": "p"}, 404),
        ("minutes/requests", {"records": [{"id": "a", "value": 1}]}, 400),
        ("minutes/requests", {"records": [{"id": "a", "value": 1, "timestamp_ms": -1}]}, 400),
        ("minutes/requests", {"records": [{"id": "", "value": 1, "timestamp_ms": 1}]}, 400),
        ("minutes/requests", {"records": [{"id": "a", "value": 1, "timestamp_ms": 1}] * 501}, 400),
        ("minutes/requests", {"records": [{"id": "a", "timestamp_ms": 1}]}, 400),
        (
            "minutes/requests",
            {"records": [{"id": "a", "value": 1, "data": "MQ==", "timestamp_ms": 1}]},
            400,
        ),
        ("minutes/requests", {"records": [], "watermark": -1}, 400),
        ("minutes/requests", {"records": [], "more": 1}, 400),
    ],
)
def test_what_cannot_come_in_is_refused(
    program: Program, path: str, body: object, status: int
) -> None:
    """With a problem that says why."""
    answer = program.post(path, body)
    assert answer.status_code == status
    assert len(answer.json["detail"]) > 10


@one_emulator
def test_what_is_there_is_read_at_any_time(program: Program) -> None:
    """Watermarks, backlog, and the state of a key with its open window."""
    body = {
        "records": [{"id": "a", "value": {"path": "/"}, "timestamp_ms": 1_000}],
        "watermark": 30_000,
    }
    program.post("minutes/requests", body)
    assert program.get("minutes").json["computations"]["hits"]["waiting"] == 1
    program.world.settle()

    status = program.get("minutes").json
    assert status["sources"]["requests"]["watermark"] == 30_000
    counted = status["computations"]["hits"]
    assert (counted["records"], counted["waiting"], counted["watermark"]) == (1, 0, 30_000)
    [(key, state)] = program.get("minutes/hits/states?limit=5").json["states"].items()
    assert key == "/"
    assert state == program.get("minutes/hits/states?key=/").json["states"]["/"] != {}
    assert program.get("minutes/hits/states?key=none").json == {"states": {"none": {}}}
    longest = "k" * MAX_KEY_BYTES
    assert program.get(f"minutes/hits/states?key={longest}").json == {"states": {longest: {}}}


class Sets:
    """A codec whose states are no JSON."""

    def dump(self, items: dict[str, Any]) -> str:
        return ",".join(sorted(items["users"]))

    def load(self, text: str) -> dict[str, Any]:
        return {"users": {*text.split(",")}}


class Users(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}
    codec = Sets()

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.setdefault("users", set()).add(record.value["user"])


@one_emulator
def test_states_that_are_no_json_are_refused_with_the_reason(services: Services) -> None:
    """A program gets no answer as of a fault of the app, which it would repeat."""
    program = Program(services, Pipeline("users", Users, sources=[PushSource("in")]))
    records = [{"id": "a", "value": {"k": "k", "user": "ann"}, "timestamp_ms": 1}]
    assert program.post("users/in", {"records": records}).status_code == 202
    program.world.settle()

    for path in ("users/users/states", "users/users/states?key=k"):
        answer = program.get(path)
        assert answer.status_code == 409
        assert answer.json["detail"] == "The codec of users reads states that are not JSON."


@one_emulator
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("none", 404),
        ("none/hits/states", 404),
        ("minutes/none/states", 404),
        ("minutes/none/states?key=a", 404),
        ("minutes/hits/states?limit=0", 400),
        ("minutes/hits/states?limit=1001", 400),
        ("minutes/hits/states?limit=0000000011001", 400),
        ("minutes/hits/states?limit=x", 400),
    ],
)
def test_what_cannot_be_read_is_refused(program: Program, path: str, status: int) -> None:
    """S1: and nothing is read without a token."""
    answer = program.get(path)
    assert answer.status_code == status
    assert len(answer.json["detail"]) > 10
    assert program.get(path, Authorization="").status_code == 403


@one_emulator
def test_a_computation_is_replaced_attached_and_detached(program: Program) -> None:
    """G15: each answer says how far that is; in the end the versions that were asked for run."""
    world = program.world
    body = {
        "records": [{"id": "a", "value": {"path": "/"}, "timestamp_ms": 1_000}],
        "watermark": 30_000,
    }
    program.post("minutes/requests", body)
    world.settle()
    for path, wanted in (("hits", {"version": 2}), ("seen", {})):
        answer = program.send("PUT", f"minutes/topology/{path}", wanted)
        assert answer.status_code == 202
        assert answer.json["computations"][path]["is_changing"]
    world.settle()
    parts = program.get("minutes/topology").json["computations"]
    assert (parts["hits"]["version"], parts["hits"]["versions"]) == (2, [1, 2, 3])
    assert (parts["seen"]["phase"], parts["minutes"]["phase"]) == ("running", "running")

    more = {
        "records": [{"id": "b", "value": {"path": "/"}, "timestamp_ms": 31_000}],
        "watermark": 60_000,
    }
    program.post("minutes/requests", more)
    assert program.send("DELETE", "minutes/topology/seen").status_code == 202
    world.settle()
    found = program.get("minutes/topology").json
    assert found["computations"]["seen"] == {
        "name": "seen", "version": None, "versions": [1], "phase": "standby",
        "previous_version": None,
        "acknowledged": 0, "senders": 0, "waiting": 0, "timers": 0, "records": 0, "keys": 0,
        "is_missing": False, "is_changing": False,
    }  # fmt: skip
    assert [change["action"] for change in found["changes"]] == ["detached", "attached", "replaced"]
    assert windows(world) == {"0": [["/", 2]]}
    assert program.get("minutes").json["computations"]["hits"]["version"] == 2


@one_emulator
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "none/topology/hits", {}, 404),
        ("PUT", "minutes/topology/none", {}, 404),
        ("PUT", "minutes/topology/hits", {"version": 9}, 404),
        ("PUT", "minutes/topology/hits", {"version": 0}, 400),
        ("PUT", "minutes/topology/hits", {"more": 1}, 400),
        ("PUT", "minutes/topology/hits", {"version": 3}, 409),
        ("DELETE", "minutes/topology/hits", None, 409),
        ("DELETE", "minutes/topology/none", None, 404),
        ("DELETE", "minutes/topology/minutes?discard=x", None, 400),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    program: Program, method: str, path: str, body: object, status: int
) -> None:
    """G15, S1: with a problem that says why, and nothing changes."""
    record = {"id": "a", "value": {"path": "/"}, "timestamp_ms": 1_000}
    program.post("minutes/requests", {"records": [record], "watermark": 30_000})
    program.world.settle()
    before = program.get("minutes/topology").json
    answer = program.send(method, path, body)
    assert answer.status_code == status
    assert len(answer.json["detail"]) > 10
    assert program.send(method, path, body, Authorization="").status_code == 403
    assert program.get("minutes/topology").json == before


@one_emulator
@pytest.mark.parametrize(
    ("query", "discards"), [("", False), ("?discard=false", False), ("?discard=true", True)]
)
def test_a_detached_computation_drops_its_backlog_only_on_demand(
    program: Program, monkeypatch: pytest.MonkeyPatch, query: str, discards: bool
) -> None:
    """G15: nothing is lost by default."""
    asked = list[bool]()
    monkeypatch.setattr(Pipeline, "detach", lambda *_, discard: asked.append(discard))

    assert program.send("DELETE", f"minutes/topology/seen{query}").status_code == 202
    assert asked == [discards]


@one_emulator
def test_an_app_without_pipelines_has_no_such_routes(services: Services) -> None:
    world = World(services)
    app = main.create_app(world.settings, world.clients, Registry())
    rules = {rule.rule for rule in app.url_map.iter_rules()}
    assert not [rule for rule in rules if rule.startswith("/api/v1/streams")]
