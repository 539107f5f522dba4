"""Services of a test session: emulators and memcached, and the settings of their app."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymemcache
import requests

from rollforward.flask.settings import LOCAL
from rollforward.local.cloudtasks.emulator import running
from rollforward.local.services import standalone
from rollforward.tasks import UrlTarget

PROJECT = "demo-tests"
LOCATION = "us-central1"
ACCOUNT = "tasks@demo-tests.iam.gserviceaccount.com"
BASE_URL = "http://app.test"
SECRET = "tests-only-0123456789abcdef-0123456789abcdef"

# Java's optimizing compiler takes longer than an emulator of tests lives: half of all that the
# emulators took.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_RESET_TIMEOUT_S = 30


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services of a test session.

    Attributes:
        datastore: host:port of its emulator.
        datastore_kind: "datastore" (the first commit wins) or "firestore" (it locks).
        cloud_tasks: The emulator, which delivers nothing on its own.
        closers: Called when the test ends.
    """

    datastore: str
    datastore_kind: str
    memcached: str | None
    cloud_tasks: Any
    database: str | None = None
    closers: list[Callable[[], None]] = field(default_factory=list)

    def delete_all(self) -> None:
        """Forget all entities, cached values and tasks."""
        self.cloud_tasks.engine.reset()
        empty(self.memcached)  # The clock was put back: turns that were taken lie far ahead.
        delete_all(self.datastore)

    def settings(self) -> dict[str, Any]:
        """Return the fields of an app's Settings, as the local platform would give them."""
        return {
            "platform": LOCAL,
            "project": PROJECT,
            "secret_keys": (SECRET,),
            "target": UrlTarget(BASE_URL, ACCOUNT, BASE_URL),
            "database": self.database,
            "datastore_emulator": self.datastore,
            "cloud_tasks_emulator": self.cloud_tasks.grpc_address,
            "memcached": self.memcached,
            "certs_url": f"{self.cloud_tasks.control_url}/oauth2/v1/certs",
        }


@contextmanager
def running_cloud_tasks(queue_yaml: Path) -> Iterator[Any]:
    """Run a Cloud Tasks emulator that delivers nothing on its own: the test decides who is next.

    Its clock does not move until the next reset, near the true time, so that its tokens are good.
    """
    times = [time.time()]
    with running(
        queue_yaml=queue_yaml,
        dispatching=False,
        app_url=BASE_URL,
        project=PROJECT,
        location=LOCATION,
        clock=lambda: times[0],
    ) as emulator:
        emulator.engine.reset_listeners.append(lambda: times.__setitem__(0, time.time()))
        yield emulator


@contextmanager
def running_services(kind: str, queue_yaml: Path) -> Iterator[Services]:
    """Run the services of a test session: Datastore, Cloud Tasks, memcached if it is installed.

    Args:
        kind: "datastore" or "firestore", an emulator of the Cloud SDK.

    Raises:
        ServiceMissingError: an emulator is not installed; says how to get it.
    """
    os.environ.setdefault("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)
    with ExitStack() as stack:
        yield Services(
            datastore=stack.enter_context(standalone.datastore_emulator(kind)),
            datastore_kind=kind,
            memcached=stack.enter_context(standalone.memcached()),
            cloud_tasks=stack.enter_context(running_cloud_tasks(queue_yaml)),
        )


def empty(memcached: str | None) -> None:
    """Empty a memcached."""
    if memcached is not None:
        host, _, port = memcached.rpartition(":")
        client = pymemcache.Client((host, int(port)), default_noreply=False)
        client.flush_all()
        client.close()


def delete_all(datastore: str) -> None:
    """Delete all that an emulator holds: its queries read every namespace of a kind."""
    _session().post(f"http://{datastore}/reset", timeout=_RESET_TIMEOUT_S)


@functools.cache
def _session() -> requests.Session:
    """Return a connection that is kept: it is made before each test otherwise."""
    return requests.Session()
