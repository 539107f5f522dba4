"""Where a profile gets into an app: a local one that is told to, and no other."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.cloud.datastore_v1.types import LookupRequest, LookupResponse

import main
from handlers.settings import DemoSettings
from pipelines.counters import counters
from rollforward.cloud_profile import BUNDLED, load
from rollforward.cloud_profile.profile import Latency
from rollforward.cloud_profile.slowdown import RandomLatency, SlowCache
from rollforward.flask import open_clients
from rollforward.flask.settings import Settings
from tests.infra.documents import LOCAL_ENVIRONMENT, ROOT, text_of

METHOD = "/google.datastore.v1.Datastore/Lookup"
KEYS = [{"path": [{"kind": "Book", "name": "a"}]}]


def test_a_local_app_is_slow_if_it_is_told_to() -> None:
    """And not otherwise."""
    plain = Settings.from_environment(LOCAL_ENVIRONMENT)
    slow = Settings.from_environment({**LOCAL_ENVIRONMENT, "CLOUD_PROFILE": str(BUNDLED)})

    assert isinstance(open_clients(slow, {}).cache, SlowCache)
    assert not isinstance(open_clients(plain, {}).cache, SlowCache)


def test_the_page_of_counters_takes_the_profile_s_limit_for_the_real_one() -> None:
    """Two limits would count each write twice."""
    plain = DemoSettings.from_environment(LOCAL_ENVIRONMENT)
    slow = DemoSettings.from_environment({**LOCAL_ENVIRONMENT, "CLOUD_PROFILE": str(BUNDLED)})

    assert counters.limit(main.open_clients(plain)) is not None
    assert counters.limit(main.open_clients(slow)) is None


def test_the_package_stays_at_home_and_an_app_starts_without_it() -> None:
    """App Engine and Cloud Run do not get it; tests/handlers/test_settings.py has the setting."""
    loaded = "import main, sys; print([name for name in sys.modules if 'cloud_profile' in name])"
    done = subprocess.run(
        [sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert "rollforward/cloud_profile/" in text_of(".gcloudignore").splitlines()
    assert "rollforward/cloud_profile" in text_of(".dockerignore").splitlines()
    assert done.stdout == "[]\n"


@pytest.fixture
def look_up() -> Iterator[Any]:
    """A lookup through gRPC, which takes a hundredth of a second."""
    bundled = load(BUNDLED)
    profile = replace(bundled, calls={**bundled.calls, "lookup": Latency(10, 10, 10)})

    def answer(request: bytes, context: Any) -> bytes:
        return LookupResponse.serialize(LookupResponse(missing=[{}]))

    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(answer)
    name, _, method = METHOD[1:].rpartition("/")
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, {method: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield grpc.intercept_channel(channel, RandomLatency(profile)).unary_unary(
            METHOD,
            request_serializer=LookupRequest.serialize,
            response_deserializer=LookupResponse.deserialize,
        )
    server.stop(0).wait()


def test_a_slow_call_answers_as_grpc_does_to_whoever_waits_and_by_a_future(look_up: Any) -> None:
    """As ndb asks: for the result, for an error, and by a callback."""
    request = LookupRequest(keys=KEYS)
    has_ended = threading.Event()
    future = look_up.future(request)
    future.add_done_callback(lambda call: has_ended.set())

    assert len(look_up(request).missing) == 1
    assert future.exception() is None
    assert len(future.result().missing) == 1
    assert has_ended.wait(10)
