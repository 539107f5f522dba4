"""The servers of gRPC: what they answer, and that calls that come together share a commit."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.cloud import tasks_v2
from google.rpc import error_details_pb2, status_pb2

from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.server.grpc import loop
from tests.rollforward.local.cloudtasks.engines import PLACE, QUEUE, add, make_engine

SERVICE = "/google.cloud.tasks.v2.CloudTasks"
TASK: dict[str, Any] = {"http_request": {"url": "http://handler.invalid/"}}

Call = Callable[..., Any]


def raising(error: Exception) -> Call:
    """Return a function that raises an error."""

    def fail(*_: Any) -> None:
        raise error

    return fail


@pytest.fixture(params=["loop", "threads"])
def emulator(request: pytest.FixtureRequest, monkeypatch: Any) -> Iterator[RunningEmulator]:
    """An emulator with one queue, served by either server."""
    if request.param == "threads":
        monkeypatch.setattr(loop, "start", raising(AttributeError("another interface")))
    with running(dispatching=False) as emulator:
        emulator.engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
        yield emulator


@pytest.fixture
def call(emulator: RunningEmulator) -> Iterator[Call]:
    """Call a method with bytes."""
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(emulator.grpc_address, options) as channel:
        yield lambda method, message, **options: channel.unary_unary(f"{SERVICE}/{method}")(
            message, **{"timeout": 30} | options
        )


def create_request(**task: Any) -> bytes:
    """Return a serialized CreateTask request."""
    request: bytes = tasks_v2.CreateTaskRequest.serialize({"parent": QUEUE, "task": TASK | task})
    return request


def get_request() -> bytes:
    """Return a serialized GetQueue request."""
    request: bytes = tasks_v2.GetQueueRequest.serialize({"name": QUEUE})
    return request


def refused(call: Call, *arguments: Any) -> grpc.RpcError:
    """Return the error of a call."""
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments)
    return raised.value


@pytest.mark.fast
def test_what_is_wrong_with_a_call(emulator: RunningEmulator, call: Call) -> None:
    """A refusal has code, words and details; a call that means nothing harms no other."""
    unknown = refused(call, "Nothing", b"")
    assert (unknown.code(), unknown.details()) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "Method not found!",
    )
    assert refused(call, "CreateTask", b"\xff\xff").code() is grpc.StatusCode.INTERNAL

    help_link = error_details_pb2.Help(links=[{"url": "http://help.invalid"}])
    emulator.engine.queues.get = raising(  # type: ignore[method-assign]
        Refused("RESOURCE_EXHAUSTED", "Wait, größer", help_link)
    )
    failed = refused(call, "GetQueue", get_request())
    assert failed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert failed.details() == "Wait, größer"
    status = dict(failed.trailing_metadata())["grpc-status-details-bin"]
    [detail] = status_pb2.Status.FromString(status).details
    assert detail.value == help_link.SerializeToString()

    emulator.engine.queues.get = raising(ValueError("a bug"))  # type: ignore[method-assign]
    assert refused(call, "GetQueue", get_request()).code() is grpc.StatusCode.INTERNAL
    assert call("CreateTask", create_request())


@pytest.mark.fast
@pytest.mark.parametrize("path", ["/", "Nothing", "/a", f"{SERVICE}/GetQueue/more", "//x"])
def test_a_path_of_another_form(emulator: RunningEmulator, call: Call, path: str) -> None:
    """It names no method."""
    with grpc.insecure_channel(emulator.grpc_address) as channel:
        error = refused(lambda: channel.unary_unary(path)(b"", timeout=10))

    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert call("GetQueue", get_request())


@pytest.mark.fast
@pytest.mark.parametrize("emulator", ["loop"], indirect=True)
def test_a_call_whose_answer_cannot_be_sent(
    emulator: RunningEmulator, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays without one; later calls are answered."""
    assert call("GetQueue", get_request())
    with monkeypatch.context() as patched:
        patched.setattr(loop, "_operations", raising(ValueError("a bug")))
        with pytest.raises(grpc.RpcError):
            call("GetQueue", get_request(), timeout=1)

    assert call("GetQueue", get_request())


def test_large_and_compressed_messages(emulator: RunningEmulator, call: Call) -> None:
    """Messages of many frames pass both ways, and compressed ones one way."""
    body = bytes(range(256)) * 3900
    task = {"http_request": TASK["http_request"] | {"body": body}}
    for compression in (None, grpc.Compression.Gzip, grpc.Compression.Deflate):
        call("CreateTask", create_request(**task), compression=compression)
    request = {"parent": QUEUE, "response_view": "FULL"}

    answer = call("ListTasks", tasks_v2.ListTasksRequest.serialize(request))

    tasks = tasks_v2.ListTasksResponse.deserialize(answer).tasks
    assert [task.http_request.body for task in tasks] == [body] * 3


def test_a_stop_amid_calls(emulator: RunningEmulator, call: Call) -> None:
    """Calls under way end with an answer or an error, and the server ends."""
    is_over = threading.Event()

    def create() -> None:
        while not is_over.is_set():
            call("CreateTask", create_request())

    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(create) for _ in range(4)]
        assert call("CreateTask", create_request())
        stop = emulator.emulator._servers.stop_grpc()
        asyncio.run_coroutine_threadsafe(stop, emulator._loop).result(30)
        is_over.set()
        errors = [one.exception(30) for one in calls]
    assert all(error is None or isinstance(error, grpc.RpcError) for error in errors)


# --- commits ----------------------------------------------------------------


@pytest.mark.parametrize("emulator", ["loop"], indirect=True)
def test_calls_that_come_together_share_a_commit(emulator: RunningEmulator, call: Call) -> None:
    """What waits for the lock is committed at once, and each call gets its own answer."""
    store, count = emulator.engine._state.store, 8
    commit, commits = store.commit, []
    store.commit = lambda: (commits.append(1), commit())  # type: ignore
    with ThreadPoolExecutor(count) as threads:
        for _ in range(50):
            commits.clear()
            with emulator.engine.lock:
                calls = [threads.submit(call, "CreateTask", create_request()) for _ in range(count)]
                threading.Event().wait(0.05)
            names = {messages.Task.FromString(one.result(30)).name for one in calls}
            assert len(names) == count
            assert all(emulator.engine.get_task(name) for name in names)
            if len(commits) < count:
                return
    pytest.fail("each of the calls had a commit of its own, fifty times")


def test_a_call_is_answered_after_its_commit(emulator: RunningEmulator, call: Call) -> None:
    """A create that could not be committed is not acknowledged; the next one may be."""
    store = emulator.engine._state.store
    commit = store.commit
    store.commit = raising(sqlite3.OperationalError("disk I/O error"))  # type: ignore
    failed = refused(call, "CreateTask", create_request())
    store.commit = commit  # type: ignore[method-assign]

    assert failed.code() is grpc.StatusCode.INTERNAL
    assert call("CreateTask", create_request())


@pytest.mark.fast
def test_changes_together_are_committed_and_told_once() -> None:
    """Also when one of them is refused."""
    engine = make_engine()
    engine.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    happened: list[str] = []
    commit = engine._state.store.commit
    engine._state.store.commit = lambda: (happened.append("commit"), commit())  # type: ignore
    engine.change_listeners.append(lambda: happened.append("news"))

    with engine.together():
        add(engine, "a")
        with pytest.raises(Refused):
            add(engine, "a")
        add(engine, "b")
        assert happened == []
    assert happened == ["commit", "news"]

    with engine.together():
        engine.get_task(f"{QUEUE}/tasks/a")
    assert happened == ["commit", "news", "commit"]
    engine.close()
