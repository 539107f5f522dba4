"""Class-data archives: mapped where they fit, and never in the way."""

import os
import sys

import pytest

from rollforward.local.services import class_data, class_training, sdk
from rollforward.local.services.datastore import DatastoreEmulator
from rollforward.local.services.datastore_command import emulator_command
from tests.rollforward.local.services.test_standalone import get, put

pytestmark = pytest.mark.skipif(
    sdk.find_jar(sdk.DATASTORE) is None and not os.environ.get("CI"),
    reason="the Datastore emulator is not installed",
)


def command(java="java", jar="emulator.jar"):
    return [str(java), "-Duser.language=en", "-cp", str(jar), "Main", "start"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of archives."""
    monkeypatch.setattr(class_data, "FOLDER", tmp_path)
    return tmp_path


def test_each_java_and_each_jar_has_an_archive_of_its_own(folder):
    """So that none has to be deleted when the SDK or Java is replaced."""
    java, jar = folder / "java", folder / "emulator.jar"
    java.write_text("17")
    jar.write_text("one")
    archives = [class_data.archive_of(command(java, jar))]
    jar.write_text("another")
    archives.append(class_data.archive_of(command(java, jar)))
    java.write_text("twenty-one")
    archives.append(class_data.archive_of(command(java, jar)))

    assert len(set(archives)) == 3


def test_a_command_without_an_archive_stays_as_it_is(folder):
    """Also where there is no such Java, or none at all."""
    assert class_data.mapped(["datastore-emulator", "--port"]) == ["datastore-emulator", "--port"]
    assert class_data.mapped(command("/nowhere/java")) == command("/nowhere/java")
    assert class_data.mapped(command(sys.executable, __file__)) == command(sys.executable, __file__)


@pytest.mark.services
@pytest.mark.skipif(sys.platform != "linux", reason="nobody says which files a process maps")
def test_an_archive_is_made_once_and_mapped(folder, monkeypatch):
    """The emulator that starts next has it in its memory."""
    monkeypatch.setattr(class_training, "KINDS", ("datastore",))

    made = class_training.make_missing()
    again = class_training.make_missing()

    assert [path.parent for path in made] == [folder]
    assert again == []
    assert list(folder.iterdir()) == made
    emulator = DatastoreEmulator()
    emulator.start()
    maps = [each.path for each in emulator.process.process().memory_maps()]
    emulator.stop()
    assert str(made[0]) in maps


@pytest.mark.services
def test_a_damaged_archive_keeps_no_emulator_from_starting(folder):
    """Java goes on without it, and nothing is said."""
    said = []
    _, java = emulator_command("datastore", "", 0, [], os.environ)
    class_data.archive_of(java).write_bytes(b"half a file")
    emulator = DatastoreEmulator(on_line=said.append)

    emulator.start()
    put(emulator.address, "a", "字")
    kept = get(emulator.address, "a")["text"]
    emulator.stop()

    assert kept == "字"
    assert not [line for line in said if "archive" in line.lower()]
