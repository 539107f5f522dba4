"""make doctor: what is missing, and the fix beside it."""

import socket

import pytest

from rollforward.local import doctor
from rollforward.local.services import sdk


def findings(env):
    return {finding.name: finding for finding in doctor.examine(env)}


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment with nothing installed."""
    monkeypatch.setattr(sdk, "_USUAL_ROOTS", ())
    monkeypatch.setattr("shutil.which", lambda *arguments, **options: None)
    return {"PATH": str(tmp_path), "APP_PORT": "0", "CONSOLE_PORT": "0"}


def test_a_bare_machine_is_not_ready_and_every_lack_has_a_fix(bare):
    """What is needed and missing is marked so, with a way to get it."""
    found = findings(bare)

    assert not found["Java"].ok
    assert found["Java"].ok is not None
    assert all(finding.fix for finding in found.values() if not finding.ok)


def test_one_emulator_is_enough(bare, monkeypatch):
    """Either emulator makes the machine ready; the other is then optional."""
    monkeypatch.setattr(
        sdk,
        "find_jar",
        lambda emulator, env: sdk.Path("/x") if emulator.kind == "firestore" else None,
    )

    found = findings(bare)

    assert found["Firestore emulator"].ok
    assert found["Datastore emulator"].ok is None


def test_an_emulator_elsewhere_needs_no_java(bare):
    """With DATASTORE_EMULATOR_HOST nothing has to be installed."""
    found = findings({**bare, "DATASTORE_EMULATOR_HOST": "127.0.0.1:8081"})

    assert not [finding for finding in found.values() if finding.ok is False]


def test_a_taken_port_names_its_holder(bare):
    """Doctor says who has the port, and what to set."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])

        finding = findings({**bare, "APP_PORT": port})[f"Port {port}"]

    assert "taken by" in finding.state
    assert "APP_PORT=" in finding.fix


def test_the_exit_code_says_whether_make_run_would_work(bare, monkeypatch):
    """Something needed is missing: 1."""
    monkeypatch.setattr(doctor, "examine", lambda: doctor_examined)
    doctor_examined = [doctor.Finding("Java", False, "missing", "install it")]
    lines = []

    assert doctor.main(lines.append) == 1
    assert "Not ready: Java." in lines[-1]


def test_optional_lacks_do_not_fail(monkeypatch):
    """Without memcached or Chromium the machine is ready."""
    monkeypatch.setattr(
        doctor, "examine", lambda: [doctor.Finding("memcached", None, "missing", "install it")]
    )
    lines = []

    assert doctor.main(lines.append) == 0
    assert "Ready" in lines[-1]
