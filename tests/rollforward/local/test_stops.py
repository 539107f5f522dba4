"""Stops and kills of the dev server: what was accepted is there at the next start."""

import contextlib
import itertools
import json
import signal

import grpc
import psutil
import pytest
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from rollforward.local.system import ports
from tests.rollforward.local.conftest import ask, eventually, write_app
from tests.rollforward.local.installed import NEEDS_DATASTORE
from tests.rollforward.local.test_run import descendants, host, names, put, run

pytestmark = [pytest.mark.process, NEEDS_DATASTORE]

APP = """
import os, pathlib, time
from flask import Flask, request
from google.cloud import datastore
from rollforward.runtime import (open_cloud_tasks)

HERE = pathlib.Path(__file__).parent

def serve():
    app = Flask(__name__)
    tasks = open_cloud_tasks(emulator=os.environ["CLOUD_TASKS_EMULATOR_HOST"], interceptors=[])
    rows = datastore.Client(project=os.environ["GOOGLE_CLOUD_PROJECT"])
    queue = f"projects/{os.environ['GOOGLE_CLOUD_PROJECT']}/locations/us-central1/queues/default"

    @app.get("/")
    def home():
        return "one"

    @app.post("/slow")
    def slow():
        (HERE / "begun").write_text(request.headers["X-CloudTasks-TaskRetryCount"])
        while not (HERE / "go").exists():
            time.sleep(0.02)
        row = request.args["row"]
        rows.put(datastore.Entity(rows.key("Note", row)))
        url = os.environ["TASKS_URL"] + f"/after?row={row}"
        tasks.create_task(parent=queue, task={"http_request": {"url": url}})
        return "", 204

    @app.post("/after")
    def after():
        rows.put(datastore.Entity(rows.key("Note", "after " + request.args["row"])))
        (HERE / "after").touch()
        return "", 204

    return app
"""


# The Firestore emulator's version grows with time: it is never calm, and saved at each interval.
SAVES_OFTEN = """
import runpy
from rollforward.local.saves import autosave

autosave.SAVE_EVERY_S, autosave._SAVE_SHARE = 4.0, 1.0
runpy.run_module("rollforward.local", run_name="__main__")
"""


class DevServer:
    """A dev server in a folder, started again and again at the same ports."""

    def __init__(self, folder, program=("-c", SAVES_OFTEN)):
        self.folder = folder
        self.program = program
        self.ports = {f"{name}_PORT": str(ports.free_port()) for name in ("APP", "TASKS")}
        self.process = None

    def start(self):
        self.process = run(self.folder, "--no-reload", program=self.program, **self.ports)
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(self.process.stderr.read())
        self.addresses = json.loads(line)

    def signal(self, number):
        self.process.send_signal(number)

    def ended(self):
        """Return what it said at the terminal, once it has ended."""
        _, errors = self.process.communicate(timeout=60)
        return errors

    def enqueue(self, path, task_id=""):
        """Create a task for a path of the app."""
        with grpc.insecure_channel(self.addresses["tasks"]) as channel:
            client = tasks_v2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
            queue = f"projects/{self.addresses['project']}/locations/us-central1/queues/default"
            url = self.addresses["app"] + path
            name = f"{queue}/tasks/{task_id}" if task_id else ""
            client.create_task(parent=queue, task={"name": name, "http_request": {"url": url}})

    def row_of(self, service):
        """Return a service's row in the console."""
        console = host(self.addresses["console"])
        rows = ask(console, "GET", "/api/v1/services").json()["services"]
        return next(row for row in rows if row["name"] == service)

    def says(self, name):
        """Return whether the app has left a file."""
        return (self.folder / name).exists()


@pytest.fixture(scope="module")
def server_of_all(tmp_path_factory):
    """A dev server, not started yet, whose app has a slow task."""
    folder = tmp_path_factory.mktemp("stops")
    write_app(folder, APP)
    made = DevServer(folder)
    yield made
    if made.process.poll() is None:
        made.process.kill()
    made.process.communicate(timeout=60)


@pytest.fixture
def server(server_of_all):
    """A dev server that runs: the one that the test before has started again, if it has."""
    for name in ("begun", "go", "after"):
        (server_of_all.folder / name).unlink(missing_ok=True)
    if server_of_all.process is None or server_of_all.process.poll() is not None:
        server_of_all.start()
    yield server_of_all
    (server_of_all.folder / "go").touch()  # What a test that failed has left under way ends.


def refuses(server):
    """Return whether the app takes no requests any more: it lets them wait, or has gone."""
    try:
        ask(host(server.addresses["app"]), "GET", "/", timeout_s=2)
    except OSError:
        return True
    return False


def test_ctrl_c_ends_what_is_under_way_and_loses_nothing(server):
    """The request under way ends; its row and the task it enqueued last are there again."""
    server.enqueue("/slow?row=first")
    eventually(lambda: server.says("begun"), "the task has begun")

    server.signal(signal.SIGINT)
    eventually(lambda: refuses(server), "no request is taken any more")
    (server.folder / "go").touch()
    said = server.ended()

    assert server.process.returncode == 0
    assert "Traceback" not in said
    assert not server.says("after"), "a delivery began while the app ended"
    server.start()
    eventually(lambda: server.says("after"), "the task that was enqueued last")
    assert "first" in names(server.addresses)


def test_a_second_ctrl_c_cuts_deliveries_off_and_says_so(server):
    """Nobody waits for a request that hangs; it comes again at the start, as if never begun."""
    put(server.addresses, "accepted")
    server.enqueue("/slow?row=second")
    eventually(lambda: server.says("begun"), "the task has begun")

    server.signal(signal.SIGINT)
    eventually(lambda: refuses(server), "no request is taken any more")
    server.signal(signal.SIGINT)
    said = server.ended()

    assert "cut off (1) come again at the next start" in said
    (server.folder / "begun").unlink()
    (server.folder / "go").touch()
    server.start()
    eventually(lambda: server.says("after"), "the task was delivered again, and ended")
    assert "accepted" in names(server.addresses)


def test_a_third_ctrl_c_says_what_is_lost(server):
    """When not even Datastore can be saved, nobody has to wait for it, and it is said."""
    java = java_of(server)
    for number in itertools.count():  # A save may come just between the row and the halt.
        note = server.row_of("Datastore")["note"]
        put(server.addresses, lost := f"lost {number}")
        java.suspend()
        if server.row_of("Datastore")["note"] == note:
            break
        java.resume()
    try:
        for _ in range(2):
            server.signal(signal.SIGINT)
            eventually(lambda: refuses(server), "no request is taken any more")
        eventually(lambda: not app_of(server), "the app has ended")
        server.signal(signal.SIGINT)
        said = server.ended()
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            java.resume()

    assert "Not saved" in said
    assert "is lost" in said
    server.start()
    assert lost not in names(server.addresses)


def test_after_a_kill_tasks_come_again_that_ended_since_the_last_save(server):
    """Datastore goes back to its save, and the work that is gone with it is done again."""
    server.enqueue("/slow?row=third")
    eventually(lambda: server.says("begun"), "the task has begun")
    note = server.row_of("Datastore")["note"]
    put(server.addresses, "saved")
    eventually(lambda: server.row_of("Datastore")["note"] != note, "a save", 60)
    assert "saved at" in server.row_of("Datastore")["note"]
    (server.folder / "go").touch()
    eventually(lambda: server.says("after"), "both tasks have ended")
    (server.folder / "after").unlink()

    server.signal(signal.SIGKILL)
    server.ended()
    server.start()

    eventually(lambda: server.says("after"), "the second task came again")
    there = {"after third", "saved", "third"}
    eventually(lambda: there <= set(names(server.addresses)), "all is there")


def test_after_a_kill_before_the_first_save_names_of_tasks_are_free(tmp_path):
    """Their work is gone with Datastore, and was never done again: their names were taken."""
    write_app(tmp_path, APP)
    server = DevServer(tmp_path, ("-m", "rollforward.local"))
    (tmp_path / "go").touch()
    try:
        for _ in range(2):
            server.start()
            assert names(server.addresses) == []
            server.enqueue("/slow?row=first", "once")
            eventually(lambda: server.says("after"), "both tasks have ended")
            (tmp_path / "after").unlink()
            assert names(server.addresses) == ["after first", "first"]
            server.signal(signal.SIGKILL)
            server.ended()
    finally:
        server.process.kill()


def test_a_datastore_that_hangs_is_named_in_terminal_and_console(server):
    """Within seconds somebody can read what hangs, and what to do; then that it is over."""
    java = java_of(server)
    java.suspend()
    try:
        eventually(lambda: server.row_of("Datastore")["state"] == "silent", "it is silent", 60)
        note = server.row_of("Datastore")["note"]
    finally:
        java.resume()
    eventually(lambda: server.row_of("Datastore")["state"] == "running", "it answers", 60)
    server.signal(signal.SIGINT)
    said = server.ended()

    assert "has not answered for" in note
    assert "Stop with Ctrl-C and start again" in note
    assert "Datastore has not answered for 10 s. Stop with Ctrl-C and start again" in said
    assert "Datastore answers again, after" in said


def java_of(server):
    """Return the process of the Datastore emulator."""
    return next(child for child in descendants(server.process) if child.name() == "java")


def app_of(server):
    """Return the processes of gunicorn."""
    found = []
    for child in descendants(server.process):
        with contextlib.suppress(psutil.Error):
            if "gunicorn" in child.cmdline():
                found.append(child)
    return found
