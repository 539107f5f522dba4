"""The backing services as tests get them: real ones, in memory, gone afterwards."""

import os
import shutil
import sys

import psutil
import pytest
from google.cloud import datastore

from rollforward.local.errors import ServiceFailedError, ServiceMissingError
from rollforward.local.services import sdk
from rollforward.local.services.datastore import DatastoreEmulator
from rollforward.local.services.datastore_command import usual_kind
from rollforward.local.services.memcached import Memcached, find_program
from rollforward.local.services.standalone import datastore_emulator, memcached
from rollforward.local.system.ports import LOOPBACK
from tests.rollforward.local.conftest import datastore_client, wait_gone
from tests.rollforward.local.installed import KINDS


def put(address, name, text):
    with_key = datastore_client(address)
    entity = datastore.Entity(with_key.key("Note", name))
    entity["text"] = text
    with_key.put(entity)
    with_key.close()


def get(address, name):
    reader = datastore_client(address)
    entity = reader.get(reader.key("Note", name))
    reader.close()
    return entity


@pytest.mark.services
@pytest.mark.parametrize("kind", KINDS)
def test_an_emulator_stores_and_leaves_no_process(kind):
    """Both official emulators run from the context manager and end with it."""
    before = set(psutil.Process().children(recursive=True))

    with datastore_emulator(kind) as address:
        put(address, "a", "字")
        kept = get(address, "a")["text"]
        started = set(psutil.Process().children(recursive=True)) - before

    assert kept == "字"
    assert len(started) >= 2  # the guard and Java
    wait_gone(list(started))


@pytest.mark.services
@pytest.mark.parametrize("kind", KINDS)
def test_data_survives_a_restart(tmp_path, kind):
    """With a folder, what one run saved the next one reads."""
    for run in range(2):
        emulator = DatastoreEmulator(kind, data_dir=tmp_path)
        emulator.start()
        put(emulator.address, f"run-{run}", "kept")
        earlier = [get(emulator.address, f"run-{number}") for number in range(run)]
        emulator.save()
        emulator.stop()

        assert all(earlier)


@pytest.mark.services
@pytest.mark.skipif(sys.platform != "linux", reason="there is one loopback address only")
@pytest.mark.parametrize("kind", KINDS)
def test_no_page_can_find_an_emulator(kind):
    """It listens where it was drawn to, another time elsewhere, and not on 127.0.0.1."""
    before = set(psutil.Process().children(recursive=True))

    with datastore_emulator(kind) as first, datastore_emulator(kind) as second:
        started = set(psutil.Process().children(recursive=True)) - before
        listening = {
            line.laddr.ip.removeprefix("::ffff:")
            for process in started
            for line in process.net_connections("tcp")
            if line.status == psutil.CONN_LISTEN
        }
        hosts = {address.partition(":")[0] for address in (first, second)}

        assert listening == hosts
        assert len(hosts | {LOOPBACK}) == 3


@pytest.mark.services
def test_reset_drops_all_data():
    """A reset gives an empty Datastore without a restart."""
    emulator = DatastoreEmulator("datastore")
    emulator.start()
    put(emulator.address, "a", "gone soon")

    emulator.reset()
    after = get(emulator.address, "a")
    emulator.stop()

    assert after is None


def test_without_any_emulator_the_ways_to_get_one_are_listed(tmp_path, monkeypatch):
    """The error is the installation guide."""
    monkeypatch.setattr(sdk, "_USUAL_ROOTS", ())
    emulator = DatastoreEmulator(env={"PATH": str(tmp_path)})

    with pytest.raises(ServiceMissingError) as caught:
        emulator.start()

    for way in ("cloud-firestore-emulator", "DATASTORE_EMULATOR=datastore", "CLOUDSDK_ROOT"):
        assert way in str(caught.value)


def test_the_emulator_that_locks_is_the_usual_one_where_it_is_installed(tmp_path, monkeypatch):
    """One of them is enough, and a program on PATH is of the other kind."""
    monkeypatch.setattr(sdk, "_USUAL_ROOTS", ())
    env, kinds = {"CLOUDSDK_ROOT": str(tmp_path), "PATH": str(tmp_path)}, []
    for emulator in (None, sdk.DATASTORE, sdk.FIRESTORE):
        if emulator is not None:
            (tmp_path / emulator.jar).parent.mkdir(parents=True)
            (tmp_path / emulator.jar).touch()
        kinds.append(usual_kind(env))

    assert kinds == ["datastore", "datastore", "firestore"]


def test_an_unknown_kind_is_refused():
    """A typo in DATASTORE_EMULATOR is an error, not a default."""
    with pytest.raises(ServiceMissingError, match="DATASTORE_EMULATOR"):
        DatastoreEmulator("firebase")


def fake_sdk(folder):
    """Make a folder that looks like an SDK with the Datastore emulator."""
    jar = folder / sdk.DATASTORE.jar
    jar.parent.mkdir(parents=True)
    jar.touch()
    (folder / "bin").mkdir()
    return folder


def test_the_sdk_is_found_through_its_variable(tmp_path):
    """CLOUDSDK_ROOT comes before all guesses."""
    root = fake_sdk(tmp_path / "unusual")

    found = sdk.find_jar(sdk.DATASTORE, {"CLOUDSDK_ROOT": str(root), "PATH": ""})

    assert found == root / sdk.DATASTORE.jar


def test_the_sdk_is_found_behind_a_link_to_gcloud(tmp_path):
    """gcloud on PATH may be a link into the SDK."""
    root = fake_sdk(tmp_path / "sdk")
    gcloud = root / "bin" / "gcloud"
    gcloud.write_text("#!/bin/sh\n")
    gcloud.chmod(0o755)
    on_path = tmp_path / "on-path"
    on_path.mkdir()
    (on_path / "gcloud").symlink_to(gcloud)

    found = sdk.find_jar(sdk.DATASTORE, {"PATH": str(on_path)})

    assert found == root / sdk.DATASTORE.jar


def test_the_sdk_is_found_behind_a_wrapper_script(tmp_path):
    """gcloud on PATH may be a script that only mentions the SDK."""
    root = fake_sdk(tmp_path / "google-cloud-sdk")
    wrapper = tmp_path / "gcloud"
    wrapper.write_text(f'#!/bin/sh\nexec "{root}/bin/gcloud" "$@"\n')
    wrapper.chmod(0o755)

    found = sdk.find_jar(sdk.DATASTORE, {"PATH": str(tmp_path)})

    assert found == root / sdk.DATASTORE.jar


def test_a_missing_java_is_one_clear_line(tmp_path):
    """Without Java the message is what to install."""
    with pytest.raises(ServiceMissingError, match="Java is missing") as caught:
        sdk.find_java({"PATH": str(tmp_path)})

    assert "\n" not in str(caught.value)


def test_a_java_that_is_too_old_is_said_so(tmp_path):
    """What Java prints about class versions becomes a sentence about Java."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho Exception java.lang.UnsupportedClassVersionError: x\nexit 1\n")
    java.chmod(0o755)
    root = fake_sdk(tmp_path / "sdk")
    env = {"CLOUDSDK_ROOT": str(root), "JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    with pytest.raises(ServiceFailedError, match="Java is too old"):
        DatastoreEmulator(env=env).start()


def test_an_emulator_that_fails_to_start_says_what_it_said(tmp_path):
    """The emulator's own last words are in the error, and nothing is left running."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho out of luck today\nexit 1\n")
    java.chmod(0o755)
    root = fake_sdk(tmp_path / "sdk")
    env = {"CLOUDSDK_ROOT": str(root), "JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    with pytest.raises(ServiceFailedError, match="out of luck today"):
        DatastoreEmulator(env=env).start()


@pytest.mark.services
@pytest.mark.skipif(find_program() is None, reason="memcached is not installed")
def test_memcached_answers_and_leaves_no_process():
    """The cache runs from the context manager, can be flushed, and ends with it."""
    before = set(psutil.Process().children(recursive=True))

    with memcached() as address:
        assert address is not None
        started = set(psutil.Process().children(recursive=True)) - before

    assert started
    wait_gone(list(started))


def test_without_memcached_there_is_none_and_no_error(monkeypatch):
    """The cache is optional: its absence is an answer."""
    monkeypatch.setattr(shutil, "which", lambda *arguments, **options: None)

    with memcached() as address:
        assert address is None


def test_a_memcached_that_does_not_start_is_an_error(monkeypatch):
    """A broken installation is not taken for a missing one."""
    monkeypatch.setattr("rollforward.local.services.memcached.find_program", lambda: sys.executable)

    with pytest.raises(ServiceFailedError, match="memcached did not start"):
        Memcached().start()
