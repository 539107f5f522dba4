"""Services for the tests, started by the tests and stopped with them.

Pipelines and models are tested on both official emulators: one is optimistic and never
waits, the other locks as the service does.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from hypothesis import settings as hypothesis_settings

from rollforward.local.services import class_training
from rollforward.local.services import standalone as backing
from rollforward.local.services.mail import MailFaults
from rollforward.testing.injection import Crash
from rollforward.testing.services import JAVA_OPTIONS, running_cloud_tasks
from tests.infra import fast_keys
from tests.infra.faults.fault_coverage import MET
from tests.infra.runs import distribution, sampling, soak, summary
from tests.infra.runs.distribution import Distribution
from tests.infra.shared_routes import SharedRule
from tests.infra.world import Services, World

# The same examples each time: a red run means a change. Explore with another profile.
hypothesis_settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis_settings.load_profile("steady")

Flask.url_rule_class = SharedRule
fast_keys.make_fast()

os.environ.setdefault("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)

ROOT = Path(__file__).parent.parent
EMULATORS = ("datastore", "firestore")
# `make test ARGS="-m fast"`: each promise once, on one emulator, in less than a minute.
FAST = "fast"


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Let a thread whose process died by a fault end without a word, as the process does."""
    told = threading.excepthook
    threading.excepthook = lambda args: None if isinstance(args.exc_value, Crash) else told(args)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Archive the emulators' Java classes, once for this machine: they start some eighty times."""
    if not is_worker(session.config):
        class_training.make_missing()


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process runs tests for another one, which gives them out."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Distribution | None:
    """Give out files as `make test` wants them; `make soak` gives out single tests."""
    return Distribution(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Leave one emulator to `-m fast`, shuffle, draw samples, share out the minutes of a soak."""
    if config.getoption("markexpr") == FAST:
        slow = [item for item in items if "firestore" in item.nodeid]
        items[:] = [item for item in items if "firestore" not in item.nodeid]
        config.hook.pytest_deselected(items=slow)
    if sampling.IS_SHUFFLED:
        sampling.shuffle(items)
    yield
    if sampling.IS_SAMPLED:
        sampling.draw(items)
    if is_worker(config):
        distribution.arrange(items)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if soak.IS_SOAK and soak.MINUTES and items:
        shares = [share for item in items if (share := _share(item))]
        alike = (1 - sum(shares)) / max(1, len(items) - len(shares))
        soak.BUDGET.all_s = soak.MINUTES * 60 * workers
        soak.BUDGET.share_s = alike * soak.BUDGET.all_s


def _share(item: pytest.Item) -> float:
    """Return what part of all minutes a test asks for; 0: as much as others get."""
    marker = item.get_closest_marker("soak_share")
    return float(marker.args[0]) if marker else 0.0


def pytest_collection_finish() -> None:
    """Keep what was collected out of the search for garbage, which reads it all again each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Count what a test plays."""
    soak.BUDGET.begin(_share(item))
    try:
        return (yield)
    finally:
        if soak.BUDGET.counts:
            item.user_properties += soak.BUDGET.properties()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Spell half a character out in what a test has logged: workers report in UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which files took long, and what was played with faults."""
    summary.tell(terminalreporter)


@pytest.fixture(scope="session", autouse=True)
def tells_workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tell other workers what was broken here: their folders stand in one."""
    if is_worker(request.config):
        MET.folder = tmp_path_factory.getbasetemp().parent / "met"


@pytest.fixture(scope="session")
def datastore_address() -> Iterator[Callable[[str], str]]:
    """Either emulator, in memory, started when a test first asks for it.

    One that runs already, for tests, is named by TEST_DATASTORE_EMULATOR or
    TEST_FIRESTORE_EMULATOR.
    """
    running_already = {kind: os.environ.get(f"TEST_{kind.upper()}_EMULATOR") for kind in EMULATORS}
    with contextlib.ExitStack() as stack:

        @functools.cache
        def address_of(kind: str) -> str:
            address = running_already.get(kind)
            return address or stack.enter_context(backing.datastore_emulator(kind))

        yield address_of


@pytest.fixture(scope="session")
def memcached_address() -> Iterator[str | None]:
    with backing.memcached() as address:
        yield address


@pytest.fixture(scope="session")
def mail_relay() -> Iterator[Any]:
    with backing.mail_server() as relay:
        yield relay


@pytest.fixture(scope="session")
def cloud_tasks() -> Iterator[Any]:
    """Cloud Tasks that delivers nothing on its own: the test decides which task is next."""
    with running_cloud_tasks(ROOT / "queue.yaml") as emulator:
        yield emulator


@pytest.fixture(params=EMULATORS)
def services(
    request: pytest.FixtureRequest,
    datastore_address: Callable[[str], str],
    memcached_address: str | None,
    mail_relay: Any,
    cloud_tasks: Any,
) -> Iterator[Services]:
    """Everything that runs beside the app, on one emulator and then on the other."""
    kind = request.param
    mail_relay.clear()
    mail_relay.faults = MailFaults()
    services = Services(
        datastore=datastore_address(kind),
        datastore_kind=kind,
        memcached=memcached_address,
        mail=mail_relay,
        cloud_tasks=cloud_tasks,
        database=os.environ.get("TEST_DATABASE") or None,
    )
    services.delete_all()
    yield services
    for close in services.closers:
        close()


@pytest.fixture
def world(services: Services) -> World:
    """The app in a namespace of its own."""
    return World(services)
