"""Values as bytes on the services: with a fault at each remote call, by each way in and out."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from rollforward.datastore.transactions import transact
from rollforward.local.cloudtasks.protocol.messages import FULL
from rollforward.runtime import Clients
from rollforward.streams import Pipeline, PushedRecord
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.listing import letter_of
from rollforward.streams.model.codecs import Encoded
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.sink import SinkRecord
from rollforward.streams.pushes import push_task
from rollforward.tasks import Retry
from rollforward.testing.injection import KINDS, OVERLAP
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import (
    REQUESTS,
    Hits,
    Minutes,
    dead,
    hits,
    stream_world,
    windows,
)
from tests.rollforward.streams.packed import PACKED, Packed
from tests.rollforward.streams.under_faults.test_streams import WebLog

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)
# Poison does not raise in a hook, but cannot be decoded.
CODECS = {"requests": Packed(garbled="poison"), "hits": Packed("packed-2")}
CODED = Pipeline("coded", Hits, Minutes, intervals=1, sources=[REQUESTS], codecs=CODECS)
GARBLED = {"path": "/", "poison": 1}


class Garbled(WebLog):
    """The same with a record that cannot be decoded."""

    def check(self, tag: str, fault: str) -> None:
        super().check(tag, fault)
        [letter] = self.pipeline.dead_letters(self.world.clients)
        assert letter.value == Encoded(PACKED.encode(GARBLED), "packed-1"), fault


@pytest.fixture
def world(services: Services) -> World:
    return stream_world(services, CODED)


@pytest.mark.parametrize("kind", [*KINDS, OVERLAP])
def test_windows_are_exact_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """G1, G2, G7, G23: each record counts once, and what cannot be decoded is dead once."""
    Explorer(world, Garbled(world, CODED)).explore([kind], at_most=1)


@one_emulator
def test_what_cannot_be_decoded_is_shown_as_bytes_and_refused_until_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7, G23."""
    clients = world.clients
    with world.context():
        CODED.push(clients, "requests", [*hits(("p", "/", 1_000), poison=1)])
    world.settle()
    with world.context():
        [letter] = CODED.dead_letters(clients)
        shown = letter_of(clients, CODED, letter.id)
        data = PACKED.encode(GARBLED)
        assert shown.body == f"packed-1, {len(data)} bytes: {data.hex(' ')}"
        with pytest.raises(BadRecordError, match="garbled"):
            CODED.replay(clients, letter.id)
        assert dead() == 1
        monkeypatch.setattr(CODECS["requests"], "garbled", "none")
        assert CODED.replay(clients, letter.id)
    world.settle()
    with world.context():
        assert [letter.error for letter in CODED.dead_letters(clients)] == ["ValueError: poison"]


@one_emulator
def test_a_program_pushes_bytes_in_base64(world: World) -> None:
    """G23: or a value, which its codec encodes; what is neither or both is refused."""
    token = world.engine.tokens.oidc_token(ACCOUNT, BASE_URL)

    def push(**record: Any) -> tuple[int, str]:
        response = world.app.test_client().post(
            "/api/v1/streams/coded/requests",
            json={"records": [{"id": str(record), "timestamp_ms": 1_000, **record}]},
            headers={"Authorization": f"Bearer {token}"},
        )
        return response.status_code, (response.json or {}).get("detail", "")

    data = base64.b64encode(PACKED.encode({"path": "/a"})).decode()
    assert push(data=data)[0] == 202
    assert push(data=data, codec="packed-1")[0] == 202
    assert push(value={"path": "/b"})[0] == 202
    assert push() == (400, "records.0: give either value or data.")
    assert push(value=1, data=data) == (400, "records.0: give either value or data.")
    assert push(data="no base64")[0] == 400
    status, detail = push(data=data, codec="packed-9")
    assert (status, "requests must have a codec 'packed-9'" in detail) == (400, True)
    assert "packed-1 cannot decode the value" in push(data="AAAA")[1]
    world.settle()
    with world.context():
        CODED.close(world.clients, "requests")
    world.settle()
    assert windows(world, CODED) == {"0": [["/a", 2], ["/b", 1]]}


@one_emulator
def test_a_transaction_pushes_bytes_that_other_code_leaves_alone(world: World) -> None:
    """G17, G23."""
    old = Pipeline("coded", Hits, Minutes, intervals=1, sources=[REQUESTS])
    clients, task = world.clients, push_task(CODED)
    with world.context():
        transact(lambda: CODED.push_in_transaction(clients, "requests", {"path": "/t"}, 1_000))
    [live] = world.live_tasks(task.queue)
    args = task.read(world.engine.get_task(live.name, FULL).http_request.body)
    assert args.is_encoded
    with world.context(), pytest.raises(Retry, match="encoded by packed-1"):
        push_task(old).work(clients, args)
    with world.context():
        transact(lambda: CODED.push_in_transaction(clients, "requests", GARBLED, 2_000))
    world.settle()
    with world.context():
        CODED.close(clients, "requests")
    world.settle()
    assert windows(world, CODED) == {"0": [["/t", 1]]}
    with world.context():
        [letter] = CODED.dead_letters(clients)
    assert (letter.value.codec, letter.timestamp_ms) == ("packed-1", 2_000)


class Wide:
    """Bytes as they are, which no task can have as an argument."""

    name = "wide"

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes) -> bytes:
        if data == b"garbled":
            raise ValueError("garbled")
        return data


CALLED = list[Any]()


def _call(_: Clients, record: SinkRecord) -> None:
    CALLED.append(record.value)


LEAVING = Pipeline(
    "coded-effects",
    sinks=[
        EffectSink("raw", _call),
        EffectSink("packed", _call),
        EffectSink("quick", _call, weak=True),
    ],
    codecs={"raw": Wide(), "packed": PACKED, "quick": PACKED},
)


@one_emulator
def test_a_sink_gets_values_decoded_and_what_it_cannot_pass_on_is_a_dead_letter(
    services: Services,
) -> None:
    """G7, G9, G23: bytes become no text on their way into a task's arguments."""
    CALLED.clear()
    world = stream_world(services, LEAVING)
    with world.context():
        for stream, value in (
            ("raw", b"as text"),
            ("raw", b"garbled"),
            ("packed", {"n": 1}),
            ("packed", {"garbled": 1}),
            ("quick", {"n": 2}),
            ("quick", {"garbled": 2}),
        ):
            LEAVING.push(world.clients, stream, [PushedRecord(f"{stream}{value}", value, 1)])
    world.settle()
    with world.context():
        errors = sorted(letter.error for letter in LEAVING.dead_letters(world.clients))

    assert sorted(value["n"] for value in CALLED) == [1, 2]
    assert [error.partition(":")[0] for error in errors] == [
        "BadRecordError",
        "packed-1 cannot decode the value",
        "packed-1 cannot decode the value",
        "wide cannot decode the value",
    ]
    CALLED.clear()
