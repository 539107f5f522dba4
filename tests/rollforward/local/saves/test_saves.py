"""Saves of Datastore: whole, of one moment, and back at the next start."""

import contextlib
import doctest
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import datastore

from rollforward.local.errors import NoResponseError, ServiceFailedError
from rollforward.local.saves import exports
from rollforward.local.saves.exports import Admin
from rollforward.local.saves.saves import KEPT, Saves
from rollforward.local.services import sdk
from rollforward.local.services.datastore import DatastoreEmulator, _Reader
from rollforward.local.system.processes import paused
from tests.infra.runs import sampling
from tests.rollforward.local.installed import KINDS

PROJECT = "demo-local"


@contextlib.contextmanager
def emulator(folder, kind="datastore", **arguments):
    """Run an emulator that keeps its data in a folder."""
    running = DatastoreEmulator(kind, data_dir=folder, project=PROJECT, **arguments)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def client(running, **arguments):
    made = datastore.Client(project=PROJECT, credentials=AnonymousCredentials(), **arguments)
    made.base_url = f"http://{running.address}"
    return made


def note(key, **fields):
    made = datastore.Entity(key, exclude_from_indexes=("plain",))
    made.update(fields)
    return made


# --- what comes back ------------------------------------------------------


@pytest.mark.services
@pytest.mark.parametrize("kind", KINDS)
def test_a_save_holds_every_namespace_database_and_value(tmp_path, kind):
    """What was stored is there again as it was: keys, values, what is indexed and what is not."""
    with emulator(tmp_path, kind, databases=("", "other")) as first:
        default, other = client(first), client(first, database="other")
        rows = [
            note(default.key("Note", "a"), plain="字", text="x", number=2**60, truth=True),
            note(default.key("Note", "a", "Note", 7, namespace="far"), text=b"\x00\xff"),
            note(other.key("Note", "b"), text=None, many=[1, "two"]),
        ]
        for row in rows:
            (other if row.key.database else default).put(row)
        assert first.save()

    with emulator(tmp_path, kind, databases=("", "other")) as second:
        default, other = client(second), client(second, database="other")
        kept = [(other if row.key.database else default).get(row.key) for row in rows]
        by_text, by_plain = default.query(kind="Note"), default.query(kind="Note")
        by_text.add_filter(filter=datastore.query.PropertyFilter("text", "=", "x"))
        by_plain.add_filter(filter=datastore.query.PropertyFilter("plain", "=", "字"))

        assert [dict(row) for row in kept] == [dict(row) for row in rows]
        assert len(list(by_text.fetch())) == 1
        assert list(by_plain.fetch()) == []


@sampling.long
@pytest.mark.services
@pytest.mark.parametrize("kinds", [("datastore", "firestore"), ("firestore", "datastore")])
def test_an_emulator_that_has_kept_nothing_takes_over_what_the_other_one_has(tmp_path, kinds):
    """Whoever changes the emulator finds the rows, and no id is handed out again."""
    if any(sdk.find_jar(emulator) is None for emulator in sdk.EMULATORS.values()):
        pytest.skip("needs both emulators")
    (first, second), said, ids = kinds, [], []
    with emulator(tmp_path, first) as running:
        of = client(running)
        for number in range(3):
            row = note(of.key("Note"), plain="字", number=number)
            of.put(row)
            ids.append(row.key.id)
        running.save()

    with emulator(tmp_path, second, say=said.append) as running:
        of = client(running)
        assert [of.get(of.key("Note", id_))["number"] for id_ in ids] == [0, 1, 2]
        row = note(of.key("Note"))
        of.put(row)
        assert row.key.id not in ids
        running.save()
    with emulator(tmp_path, first):
        pass

    assert said == [f"taking over what the {first.capitalize()} emulator had saved"]


@pytest.mark.services
@pytest.mark.parametrize("kind", KINDS)
def test_no_id_is_handed_out_again_after_a_restart(tmp_path, kind):
    """Ids of the first run are taken, also those whose rows were never written."""
    given = []
    for _ in range(2):
        with emulator(tmp_path, kind) as running:
            of = client(running)
            for _ in range(3):
                row = note(of.key("Auto"))
                of.put(row)
                given.append(row.key.id)
            given += [key.id for key in of.allocate_ids(of.key("Auto"), 5)]
            running.save()

    assert len(set(given)) == len(given)


WRITER = """
import sys
from google.auth.credentials import AnonymousCredentials
from google.cloud import datastore

of = datastore.Client(project="demo-local", credentials=AnonymousCredentials())
of.base_url = sys.argv[1]
for count in range(1_000_000):
    with of.transaction():
        for half in range(6):
            row = datastore.Entity(of.key("Half", str(half)))
            row["count"] = count
            of.put(row)
    print(count, flush=True)
"""


@pytest.mark.services
@pytest.mark.parametrize("kind", KINDS)
def test_a_save_is_of_one_moment(tmp_path, kind, monkeypatch):
    """Made while a writer is held in the middle, it has each commit whole, and all that ended."""
    monkeypatch.setattr("rollforward.local.services.datastore._IDLE_WITHIN_S", 60.0)
    committed, saves = -1, []
    with emulator(tmp_path, kind) as running:
        command = [sys.executable, "-c", WRITER, f"http://{running.address}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            for number in range(4):
                for _ in range(7):
                    committed = int(writer.stdout.readline())
                with paused([psutil.Process(writer.pid)]):
                    assert running.save()
                shutil.copytree(running.saved.folder, tmp_path / f"copy-{number}")
                saves.append((committed, tmp_path / f"copy-{number}"))
            writer.kill()

    with emulator(None, kind) as running:
        of = client(running)
        for least, folder in saves:
            running.reset()
            running.admin.load({"": str(next(folder.rglob("*.overall_export_metadata")))})
            rows = of.get_multi([of.key("Half", str(half)) for half in range(6)])
            (count,) = {row["count"] for row in rows}
            assert count >= least


@pytest.mark.services
def test_nothing_is_saved_while_nothing_changes(tmp_path):
    """An idle Datastore costs a question, no export, but for one that begins with nothing."""
    with emulator(tmp_path) as running:
        of = client(running)
        assert running.began_empty
        assert running.save()  # Cloud Tasks goes back to it.
        assert not running.save()
        of.put(note(of.key("Note", "a")))
        assert running.save()
        assert not running.save()
        list(of.query(kind="Note").fetch())
        assert not running.save()
        of.delete(of.key("Note", "a"))
        assert running.save()

    with emulator(tmp_path) as running:
        assert not running.began_empty
        assert not running.save()


@pytest.mark.services
def test_a_save_moves_with_time_while_nothing_changes(tmp_path):
    """L1: the next start dropped each task that was enqueued since the save was made."""

    def as_of_the_next_start():
        return Saves.of(tmp_path / "datastore", PROJECT).newest().as_of

    with emulator(tmp_path) as running:
        running.save(0.5)  # There is nothing to go back to.
        client(running).put(note(client(running).key("Note", "a")))
        running.save(1.0)
        assert not running.save(2.0)
        assert as_of_the_next_start() == 2.0
        client(running).put(note(client(running).key("Note", "b")))
        assert not running.save(3.0, may_export=False)  # What was saved is not all there is.
        assert as_of_the_next_start() == 2.0
        running.save(4.0)
        assert not running.save(5.0, is_last=True)

    assert as_of_the_next_start() == 5.0
    with emulator(tmp_path) as running:
        of = client(running)
        assert of.get(of.key("Note", "b")) is not None


@pytest.mark.services
def test_projects_do_not_mix(tmp_path):
    """A run for another project has data of its own, and leaves the first one's alone."""
    with emulator(tmp_path) as running:
        of = client(running)
        of.put(note(of.key("Note", "a"), text="first"))
        running.save()

    another = DatastoreEmulator("datastore", data_dir=tmp_path, project="demo-another")
    another.start()
    another.stop()

    with emulator(tmp_path) as running:
        of = client(running)
        assert of.get(of.key("Note", "a"))["text"] == "first"


# --- whatever ends us -----------------------------------------------------


def exported(folder):
    """Stand in for an emulator that writes its export."""
    (folder / "all").mkdir()
    (folder / "all" / "x.overall_export_metadata").write_text("all of it")
    return {"": str(folder / "all" / "x.overall_export_metadata")}, 17


def test_an_export_that_is_cut_short_is_no_save(tmp_path):
    """The save before it stays the newest, and the next one is made as if nothing had been."""

    def dies(folder):
        exported(folder)
        raise NoResponseError("gone")

    saves = Saves(tmp_path / "saves")
    assert saves.newest() is None
    first = saves.write(exported, 5.0, 6.0)
    with pytest.raises(NoResponseError):
        saves.write(dies, 7.0, 8.0)

    assert saves.newest() == first
    assert (first.as_of, first.real_time, first.next_id) == (5.0, 6.0, 17)
    assert Path(first.paths()[""]).read_text() == "all of it"
    assert saves.write(exported, 9.0, 9.0) == saves.newest() != first


def test_only_the_last_saves_stay(tmp_path):
    """Disk use is bounded by KEPT saves."""
    saves = Saves(tmp_path)

    written = [saves.write(exported, float(number), 0.0) for number in range(KEPT + 3)]

    assert sorted(tmp_path.iterdir()) == [save.folder for save in written[-KEPT:]]


@pytest.mark.parametrize(
    ("damaged", "content"),
    [
        ("save.json", b"{"),
        ("save.json", b'{"format": 99}'),
        ("all/x.overall_export_metadata", b"all of"),
        ("all/another", b""),
    ],
)
def test_a_damaged_save_is_refused(tmp_path, damaged, content):
    """Nobody starts with less than was saved unaware: the emulators would say nothing."""
    saves = Saves(tmp_path)
    save = saves.write(exported, 0.0, 0.0)
    (save.folder / damaged).write_bytes(content)

    with pytest.raises(ServiceFailedError, match="Move that folder away"):
        saves.newest()


@pytest.mark.services
def test_a_start_that_cannot_load_leaves_nothing_behind(tmp_path):
    """The start fails, and the emulator with it."""
    Saves(tmp_path / "datastore" / "saves" / PROJECT).write(exported, 0.0, 0.0)

    running = DatastoreEmulator("datastore", data_dir=tmp_path, project=PROJECT)
    with pytest.raises(ServiceFailedError, match="Move that folder away"):
        running.start()

    assert running.process is None


def test_an_emulator_that_does_not_answer_is_no_answer():
    """A refused connection is said in one sentence, for whoever asked."""
    with pytest.raises(NoResponseError, match="did not answer"):
        Admin("127.0.0.1:1", PROJECT).ping()


# --- from an earlier version ----------------------------------------------


def written_by_the_emulator(storage):
    """Let the Datastore emulator write a storage file of its own; return an id it gave."""
    storage.parent.mkdir(parents=True)
    writer = _Reader(storage, project=PROJECT, env=os.environ)
    writer.start()
    of = client(writer)
    of.put(note(of.key("Note", "old"), text="kept"))
    row = note(of.key("Auto"))
    of.put(row)
    with urllib.request.urlopen(f"http://{writer.address}/shutdown", data=b""):
        pass
    assert writer.process.wait(30)
    writer.stop()
    return row.key.id


@sampling.long
@pytest.mark.services
def test_the_emulators_own_file_is_taken_over(tmp_path):
    """Data of a version that let the emulator write is there, ids included, and only once."""
    storage = tmp_path / "datastore" / "local_db.bin"
    given = written_by_the_emulator(storage)
    said = []

    with emulator(tmp_path, say=said.append) as running:
        of = client(running)
        assert of.get(of.key("Note", "old"))["text"] == "kept"
        row = note(of.key("Auto"))
        of.put(row)
        assert row.key.id > given
        of.delete(of.key("Note", "old"))
        running.save()
    with emulator(tmp_path) as running:
        of = client(running)
        assert of.get(of.key("Note", "old")) is None

    assert said == [f"taking over the data in {storage}"]


@pytest.mark.services
def test_a_damaged_file_of_the_emulator_is_refused(tmp_path):
    """The emulator would leave it out without a word, and the next save would hide it."""
    storage = tmp_path / "datastore" / "local_db.bin"
    storage.parent.mkdir()
    storage.write_bytes(b"half a file")

    with pytest.raises(ServiceFailedError, match="Move that file away"), emulator(tmp_path):
        pass


def test_ids_and_their_counts():
    """Every count has one id, and the id leads back."""
    assert doctest.testmod(exports).failed == 0
    counts = [1, 2, 3, 1000, 2**40]
    assert [exports.counter_of(exports.id_of(count)) for count in counts] == counts
