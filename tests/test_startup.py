"""What a starting app loads: nothing that takes long and may never be used."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from rollforward import lazy_imports
from rollforward.runtime.lazy import Lazy
from tests.infra.documents import ROOT

ACCOUNTS = "google.oauth2.service_account"
# Each took more than a hundredth of the start of an app that loaded all at once.
LATE = (
    "aiohttp",
    "cryptography",
    "email_validator",
    "flask_wtf",
    "google.cloud.tasks_v2",
    "pydantic.main",
    "pydantic_core._pydantic_core",
    "redis.client",
    "statistics",
    "wtforms",
)
# The emulator that runs alone needs the messages of Google's client, and nothing to call it with.
EMULATOR_LATE = (
    "cryptography",
    "flask",
    "google.api_core",
    "google.auth",
    "google.cloud.ndb",
    "google.cloud.tasks_v2.services",
    "google.cloud.tasks_v2beta2.types",
    "google.cloud.tasks_v2beta3.types",
    "grpc",
    "importlib.metadata",
    "importlib.resources",
    "jinja2",
    "psutil",
    "pydantic.main",
    "requests",
    "rollforward.cloud_profile",
    "rollforward.datastore",
    "rollforward.local.console",
    "rollforward.runtime",
    "yaml",
)
# A call over REST loads the one; programs that call load the other.
REST_LATE = ("aiohttp", "http.client")
EMULATOR = """
import sys
from rollforward.cli import parser
from rollforward.cli.commands.tasks_emulator import emulator_module
parser()
emulator_module()
from rollforward.local.cloudtasks.emulator import running
with running(every_place=True, queues=["mails"]) as emulator:
    listening = [*sys.modules]
    import urllib.request
    queue = "projects/demo-local/locations/us-central1/queues/mails"
    url = f"http://{emulator.grpc_address}/v2/{queue}"
    assert queue in urllib.request.urlopen(url, timeout=60).read().decode()
    loaded = [*sys.modules]
    import grpc
    with grpc.insecure_channel(emulator.grpc_address) as channel:
        call = channel.unary_unary("/google.cloud.tasks.v2.CloudTasks/GetQueue")
        assert queue.encode() in call(b"\\x0a" + bytes([len(queue)]) + queue.encode(), timeout=60)
    api = sys.argv[1]
    print(*{"no call": listening, "rest": loaded, "grpc": sys.modules}[api])
"""


def output_of(program: str, *arguments: str) -> list[str]:
    """Return the words that a Python process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_importing_main_loads_nothing_that_can_wait() -> None:
    """A library that some requests need is loaded by the first of them."""
    loaded = set(output_of("import main, sys; print(*sys.modules)"))

    assert "flask" in loaded
    assert loaded.isdisjoint(LATE)


@pytest.mark.parametrize(
    ("api", "late"),
    [("no call", set()), ("rest", {*REST_LATE}), ("grpc", {*REST_LATE, "grpc"})],
)
def test_an_emulator_that_runs_alone_loads_what_its_calls_need(api: str, late: set[str]) -> None:
    """It listens before it loads a server; REST does not load gRPC, and none Google's client."""
    loaded = set(output_of(EMULATOR, api))

    assert "google.cloud.tasks_v2.types" in loaded
    assert loaded & {*EMULATOR_LATE, *REST_LATE} == late


@pytest.mark.parametrize(
    ("name", "member"), [("redis", "Redis"), (ACCOUNTS, "Credentials"), ("pydantic", "BaseModel")]
)
def test_a_lazy_module_is_loaded_by_its_first_use(name: str, member: str) -> None:
    """It is then a module like any other."""
    program = f"""
import main, sys
module = sys.modules[{name!r}]
print(type(module).__name__, {member!r} in vars(module))
print(isinstance(getattr(module, {member!r}), type))
print(type(module).__name__, hasattr(module, "no_such_thing"))
"""
    assert name in lazy_imports.MODULES
    assert output_of(program) == ["_LazyModule", "False", "True", "module", "False"]


def test_threads_that_use_a_lazy_module_at_the_same_time_wait_for_its_load() -> None:
    """None of them sees half a module."""
    program = """
import main, sys, threading
sys.setswitchinterval(1e-5)
module = sys.modules["redis"]
start = threading.Barrier(16)
found = []
def use():
    start.wait(30)
    found.append(module.Redis.__name__)
threads = [threading.Thread(target=use) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*found)
"""
    assert output_of(program) == ["Redis"] * 16


def test_threads_that_need_an_object_at_the_same_time_share_one() -> None:
    """What is made on first use is made once."""
    made: list[int] = []
    start = threading.Barrier(16)

    def make() -> Any:
        made.append(1)
        return "made"

    late = Lazy(make)

    def use() -> None:
        start.wait(10)
        assert late.upper() == "MADE"

    threads = [threading.Thread(target=use) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_an_object_that_could_not_be_made_is_made_by_the_next_use() -> None:
    """A credential that was not there a moment ago does not spoil the process."""
    outcomes = iter([OSError("no credentials"), "made"])

    def make() -> Any:
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    late = Lazy(make)
    with pytest.raises(OSError, match="no credentials"):
        late.upper()
    assert late.upper() == "MADE"
