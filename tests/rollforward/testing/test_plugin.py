"""The plugin in sessions of pytest of their own, as a user's folder has them."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import psutil
import pytest

from rollforward.testing import sessions
from tests.infra.runs import sampling
from tests.rollforward.testing.apps import bookings
from tests.rollforward.testing.sessions_of_users import run

APPS = Path(__file__).parent / "apps"

TESTS = """
import os
import pytest
from bookings import Booking, confirm

FORM = {"seat": "A1", "guest": "Ada"}


@pytest.mark.parametrize("number", range(4))
def test_each_begins_empty(rollforward, number):
    assert Booking.query().count() == 0
    assert rollforward.client.post("/sound", data=FORM).status_code == 200
    assert rollforward.enqueued(confirm) == [confirm.bind("A1")]
    rollforward.settle()
    assert Booking.get_by_id("A1").is_confirmed
    open(f"services-{os.getpid()}", "w").write(os.environ["DATASTORE_EMULATOR_HOST"])


def test_explored(rollforward):
    def check():
        assert Booking.get_by_id("A1") is not None

    rollforward.explore(
        lambda: rollforward.client.post("/sound", data=FORM), check, faults=["reply-lost"]
    )
"""
LIGHT = """
import sys


def test_nothing_is_loaded():
    heavy = {"flask", "google.cloud.ndb", "grpc", "aiohttp", "rollforward.testing.kit"}
    assert heavy & set(sys.modules) == set()
    assert "rollforward.testing.plugin" in sys.modules
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with an app, settings and tests."""
    shutil.copy(APPS / "bookings.py", tmp_path / "bookings.py")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_bookings.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nrollforward_app = bookings:serve\n")
    return tmp_path


def services_of(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("services-*")]


def living(text: str) -> list[int]:
    """Return the processes whose command has a text."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(text in word for word in process.info["cmdline"] or [])
    ]


def test_a_session_starts_its_services_once_and_ends_them(folder: Path) -> None:
    """The app comes from the settings; the exploration is printed; no emulator is left."""
    output = run(folder)

    assert output.count(" PASSED") == 5
    assert re.search(r"test_explored: explored \d+ remote calls in \d+ plays \(\d+ reply-", output)
    [address] = services_of(folder)
    host = address.partition(":")[0]
    assert host.startswith("127.")
    assert living(host) == []


@sampling.long
def test_workers_of_xdist_have_services_of_their_own(folder: Path) -> None:
    """What one wipes, the other does not miss; the counts of both are printed."""
    output = run(folder, "-n", "2", "--dist", "load")

    assert output.count(" PASSED") == 5
    assert "explored" in output
    addresses = services_of(folder)
    assert len(set(addresses)) == len(addresses) == 2
    assert [living(address.partition(":")[0]) for address in addresses] == [[], []]


def test_a_session_without_the_fixture_loads_nothing(tmp_path: Path) -> None:
    """Whoever installs the package pays nothing in other tests."""
    (tmp_path / "test_light.py").write_text(LIGHT)

    assert "1 passed" in run(tmp_path)


def test_an_app_of_a_fixture_and_fakes_serve_as_well(folder: Path) -> None:
    """A fixture in place of the setting; a service of the app in place of the real one."""
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (folder / "tests/test_bookings.py").write_text(
        """
import bookings
import pytest


class Till:
    def __init__(self):
        self.charges = []

    def charge(self, cents, key=None):
        self.charges.append(cents)


@pytest.fixture(scope="session")
def rollforward_app():
    return bookings.make()


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def rollforward_fakes(till):
    return {bookings.Payments: till}


@pytest.mark.parametrize("number", range(2))
def test_charge(rollforward, till, number):
    assert rollforward.client.post("/impatient", data={"seat": "A1"}).status_code == 200
    assert till.charges == [2_000]
"""
    )

    assert run(folder).count(" PASSED") == 2


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("", 'name the app under test in the ini file, as in rollforward_app = "shop:serve"'),
        ("bookings:Booking", "bookings:Booking must be what rf.serve"),
        ("nothing:serve", "There is no module 'nothing'"),
        ("bookings:nothing", "There is no 'nothing' in"),
    ],
)
def test_an_app_that_is_not_there_is_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, app: str, said: str
) -> None:
    """By the setting to write."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(sys.modules, "bookings", bookings)

    with pytest.raises(Exception, match=re.escape(said)):
        sessions.app_of(app, folder)


def test_a_wrong_emulator_is_explained(folder: Path) -> None:
    """Before any service starts."""
    with (
        pytest.raises(ValueError, match="must be one of firestore, datastore, got 'spanner'"),
        sessions.running(folder, "", "", "spanner"),
    ):
        pass
    with (
        pytest.raises(ValueError, match="rollforward_queues must name a file"),
        sessions.running(folder, "", "queues.yml", ""),
    ):
        pass
