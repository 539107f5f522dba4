"""make doctor: what is missing, and the fix beside it."""

import http.server
import json
import socket
import threading

import pytest

from rollforward import cli
from rollforward.local import doctor, settings
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


@pytest.fixture
def platform(tmp_path):
    """The console of a local platform, which runs the app of a folder."""
    root = tmp_path / "shop"
    root.mkdir()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            url = f"http://127.0.0.1:{server.server_port}"
            shown = {"target": "a:b", "root": str(root), "environment": {"TASKS_URL": url}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(shown).encode())

        def log_message(self, format, *arguments):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield root, str(server.server_port)
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_ports_of_a_running_platform_are_not_called_taken(bare, platform):
    """The platform of this folder is to run; one of another folder is named."""
    root, port = platform
    env = {**bare, "CONSOLE_PORT": port}
    here = {finding.name: finding for finding in doctor.examine(env, root)}[f"Port {port}"]
    there = {finding.name: finding for finding in doctor.examine(env, root.parent)}[f"Port {port}"]

    assert (here.ok, here.fix) == (True, "")
    assert "the platform of this folder" in here.state
    assert there.ok is None
    assert f"taken by the platform of {root}" in there.state


@pytest.mark.parametrize("verb", [["replay", "--all"], []])
def test_a_command_asks_no_platform_of_another_folder_if_this_one_has_an_app(
    platform, tmp_path, monkeypatch, capsys, verb
):
    """`rollforward dead replay --all` would replay the dead tasks of whatever holds port 8000."""
    root, port = platform
    monkeypatch.setattr(settings, "CONSOLE_PORT", int(port))
    monkeypatch.delenv("CONSOLE_PORT", raising=False)
    other = tmp_path / "other"
    other.mkdir()
    (other / "main.py").write_text("serve = None\n")
    monkeypatch.chdir(other)

    assert cli.main(["dead", *verb]) == 2
    assert f"runs the app of {root}" in capsys.readouterr().err
    assert cli.main(["shell", "-c", "1"]) == 2
    assert f"runs the app of {root}" in capsys.readouterr().err


def test_a_command_in_a_folder_without_an_app_says_which_app_it_asks(
    platform, tmp_path, monkeypatch, capsys
):
    """In a folder of the app it says nothing."""
    root, port = platform
    monkeypatch.setattr(settings, "CONSOLE_PORT", int(port))
    monkeypatch.delenv("CONSOLE_PORT", raising=False)
    (root / "templates").mkdir()
    monkeypatch.chdir(tmp_path)
    elsewhere = cli.main(["dead"]), capsys.readouterr().err
    monkeypatch.chdir(root / "templates")
    inside = cli.main(["dead"]), capsys.readouterr().err

    assert elsewhere == (0, f"The app of {root}, which runs at http://127.0.0.1:{port}:\n")
    assert inside == (0, "")


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
