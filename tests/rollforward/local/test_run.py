"""python -m rollforward.local as a person meets it: one command up, nothing left behind."""

import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from google.cloud import datastore

from rollforward.local.__main__ import main
from tests.contracts.clients.rest import call
from tests.contracts.conftest import serving
from tests.infra.documents import text_of
from tests.rollforward.local.conftest import (
    QUEUE_YAML,
    STANDIN,
    ask,
    datastore_client,
    eventually,
    wait_gone,
)
from tests.rollforward.local.installed import NEEDS_DATASTORE

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.process, NEEDS_DATASTORE]


def environment(**more):
    names = ("APP", "CONSOLE", "TASKS", "DATASTORE", "MEMCACHE", "MAIL")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith(("_EMULATOR_HOST", "_EMULATOR")) and name != "MEMCACHE_HOSTS"
    }
    ports = {f"{name}_PORT": "0" for name in names}
    return {**kept, **ports, "PYTHONPATH": str(ROOT), "GOOGLE_CLOUD_PROJECT": "demo-run", **more}


def run(folder, *arguments, program=("-m", "rollforward.local"), **more):
    """Start the dev server in a folder."""
    return subprocess.Popen(
        [sys.executable, *program, "--json", *arguments],
        cwd=folder,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def start(app_folder):
    """A way to start dev servers that are gone when the test ends."""
    started = []

    def start_one(*arguments, **more):
        process = run(app_folder, *arguments, **more)
        started.append(process)
        line = process.stdout.readline()
        if not line:
            pytest.fail(process.stderr.read())
        return process, json.loads(line)

    yield start_one
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def worker():
    """Another service of the shop."""
    with serving() as handler:
        yield handler


@pytest.fixture(scope="module")
def shop(tmp_path_factory, worker):
    """A dev server that keeps its data, of a module that is not called main; and its addresses."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(STANDIN)
    (folder / "queue.yaml").write_text(QUEUE_YAML)
    (folder / "dispatch.yaml").write_text('dispatch: [{url: "*/work/*", service: worker}]')
    options = ["--target", "shop:serve", f"--service=worker={worker.url}"]
    process = run(folder, *options, GOOGLE_APPLICATION_CREDENTIALS="/real/key.json")
    line = process.stdout.readline()
    if not line:
        pytest.fail(process.stderr.read())
    yield folder, process, json.loads(line)
    process.terminate()
    process.communicate(timeout=60)


@pytest.fixture
def refused(app_folder, monkeypatch, capsys):
    """A way to start a dev server, in this process, that ends at once: its exit code and words."""

    def start(*arguments, **more):
        monkeypatch.chdir(app_folder)
        wanted = environment(**more)
        for name in os.environ.keys() - wanted.keys():
            monkeypatch.delenv(name)
        for name, value in wanted.items():
            monkeypatch.setenv(name, value)
        code = main(["--json", *arguments])
        said = capsys.readouterr()
        assert said.out == ""
        return code, said.err

    return start


def descendants(process):
    return psutil.Process(process.pid).children(recursive=True)


def host(url):
    return url.removeprefix("http://")


def put(addresses, name):
    """Store a note in the dev server's Datastore."""
    client = datastore_client(addresses["datastore"], addresses["project"])
    client.put(datastore.Entity(client.key("Note", name)))
    client.close()


def names(addresses):
    """Return the names of the notes in the dev server's Datastore."""
    client = datastore_client(addresses["datastore"], addresses["project"])
    found = sorted(row.key.name for row in client.query(kind="Note").fetch())
    client.close()
    return found


def test_one_command_starts_everything_and_ctrl_c_stops_it(start):
    """App, console, tasks, mail and emulators answer; after SIGINT not one process is left."""
    process, addresses = start("--memory")
    everybody = descendants(process)
    app = ask(host(addresses["app"]), "GET", "/")
    services = ask(host(addresses["console"]), "GET", "/api/v1/services").json()["services"]

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert app.text == "one"
    assert not [row for row in services if row["state"] == "stopped"]
    assert len(everybody) >= 5  # the app with two workers, Java, and a guard for each
    assert process.returncode == 0
    assert errors == ""
    wait_gone(everybody)


def test_kill_9_leaves_nothing_behind(start):
    """Even when nobody can tidy up, every child ends."""
    process, addresses = start("--memory")
    everybody = descendants(process)

    process.kill()
    process.wait()

    wait_gone(everybody)
    with pytest.raises(OSError, match="refused"):
        ask(host(addresses["app"]), "GET", "/")


def test_any_app_runs_in_a_folder_of_its_own(shop):
    """The module, queue.yaml and data are those of the folder where one stands."""
    folder, _, addresses = shop

    console = ask(host(addresses["console"]), "GET", "/api/v1/queues").json()
    assert ask(host(addresses["app"]), "GET", "/").text == "one"
    assert [queue["id"] for queue in console["queues"]] == ["default", "mails"]
    assert (folder / ".dev" / "lock").exists()


def test_the_app_is_told_where_everything_is(shop):
    """The app's environment names only services on this machine."""
    _, _, addresses = shop

    env = ask(host(addresses["app"]), "GET", "/environment").json()

    assert env["GOOGLE_CLOUD_PROJECT"] == "demo-run"
    assert env["DATASTORE_EMULATOR_HOST"] == addresses["datastore"]
    assert env["CLOUD_TASKS_EMULATOR_HOST"] == addresses["tasks"]
    assert env["MEMCACHE_HOSTS"] == addresses["memcached"]
    assert env["SMTP_HOST"] == addresses["mail"]
    assert env["TASKS_URL"] == addresses["app"]
    assert env["TASKS_LOCATION"] == "us-central1"
    assert env["TASKS_SERVICE_ACCOUNT"] == "tasks@demo-run.iam.gserviceaccount.com"
    assert env["TASKS_ISSUER"] == env["DEVSERVER_URL"] == addresses["console"]
    assert len(env["SECRET_KEY"]) >= 32
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in env
    keys = ask(host(addresses["console"]), "GET", "/oauth2/v1/certs")
    assert env["TASKS_CERTS_URL"].endswith("/oauth2/v1/certs")
    assert keys.status == 200


def test_tasks_go_to_the_service_that_dispatch_yaml_names(shop, worker):
    """A saved dispatch.yaml is applied at once."""
    folder, _, addresses = shop
    queue = "/v2/projects/demo-run/locations/us-central1/queues/default/tasks"

    def is_sent_to_worker(uri):
        task = {"task": {"appEngineHttpRequest": {"relativeUri": uri}}}
        assert call(addresses["tasks"], "POST", queue, task)[0] == 200
        return worker.entered[uri].wait(0.5)

    eventually(lambda: is_sent_to_worker("/work/1"), "the worker gets its tasks")
    (folder / "dispatch.yaml").write_text('dispatch: [{url: "*/late/*", service: worker}]')
    eventually(lambda: is_sent_to_worker("/late/1"), "the worker gets other tasks")


def test_a_worker_can_be_killed_through_the_api(shop):
    """The fault lever of the demos works on the real app."""
    _, _, addresses = shop
    headers = {"Content-Type": "application/json"}

    killed = ask(host(addresses["console"]), "POST", "/api/v1/workers/kill", headers=headers)

    pid = killed.json()["pid"]
    eventually(lambda: not psutil.pid_exists(pid), "the worker has ended")
    assert ask(host(addresses["app"]), "GET", "/").text == "one"


def test_a_second_dev_server_in_the_same_folder_is_refused(shop):
    """Two of them would write the same files: the second says who has them."""
    folder, first, _ = shop

    second = run(folder, "--target", "shop:serve")
    _, errors = second.communicate(timeout=60)

    assert second.returncode == 1
    assert f"already runs here (pid {first.pid})" in errors
    assert "Traceback" not in errors


def test_data_tasks_mail_and_key_survive_a_restart(start, app_folder):
    """What one run kept in .dev/ the next one has, logs included."""
    first, addresses = start("--no-reload")
    put(addresses, "a")
    console = host(addresses["console"])
    headers = {"Content-Type": "application/json"}
    rule = json.dumps({"kind": "delay"})
    assert ask(console, "POST", "/api/v1/faults", body=rule, headers=headers).status == 201
    key = ask(host(addresses["app"]), "GET", "/environment").json()["SECRET_KEY"]
    first.terminate()
    _, errors = first.communicate(timeout=60)

    _, again = start("--no-reload")

    assert errors == ""
    assert names(again) == ["a"]
    assert ask(host(again["app"]), "GET", "/environment").json()["SECRET_KEY"] == key
    kept = {path.name for path in (app_folder / ".dev").iterdir()}
    assert {"secret_key", "tasks.sqlite", "mail.sqlite", "datastore", "logs"} <= kept
    assert (app_folder / ".dev" / "logs" / "app.log").stat().st_size > 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"GOOGLE_CLOUD_PROJECT": "my-company"}, "Local projects begin with 'demo-'"),
        ({"DATASTORE_EMULATOR": "mongo"}, "DATASTORE_EMULATOR"),
        ({"APP_PORT": "x"}, "APP_PORT"),
    ],
)
def test_a_bad_setting_is_one_clear_message(refused, more, said):
    """No traceback, exit code 1, and nothing was started."""
    code, errors = refused(**more)

    assert code == 1
    assert said in errors


def test_a_taken_port_is_named_with_its_setting_and_holder(refused):
    """The message says what to change, and whom to stop."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        code, errors = refused(CONSOLE_PORT=str(port))

    assert code == 1
    assert re.search(rf"Port {port} is taken by .*\(pid {os.getpid()}\)", errors)
    assert f"CONSOLE_PORT={port + 1}" in errors


def test_an_app_that_cannot_be_loaded_says_so_and_the_platform_lives_on(start, app_folder):
    """Ten lines at the terminal, the same on each page; once it is fixed, it is there."""
    main = app_folder / "main.py"
    good = main.read_text()
    main.write_text(f"raise ValueError('no settings')\n{good}")

    process, addresses = start("--memory")
    page = ask(host(addresses["app"]), "GET", "/any/page")
    services = ask(host(addresses["console"]), "GET", "/api/v1/services").json()["services"]
    main.write_text(good)
    eventually(lambda: ask(host(addresses["app"]), "GET", "/").text == "one", "the fixed app")
    process.terminate()
    _, errors = process.communicate(timeout=60)

    assert page.status == 500
    assert "main.py, line 1: ValueError: no settings" in html.unescape(page.text)
    assert "cannot be loaded" in next(row["note"] for row in services if row["name"] == "App")
    assert "main.py, line 1: ValueError: no settings" in errors
    assert len([line for line in errors.splitlines() if line.startswith("app")]) <= 10


def test_an_app_that_misses_a_queue_is_loaded_again_when_queue_yaml_has_it(start, app_folder):
    """The page tells the person to add the queue and save."""
    main, queues = app_folder / "main.py", app_folder / "queue.yaml"
    good = main.read_text()
    check = "if 'late' not in open('queue.yaml').read(): raise LookupError('no queue late')"
    main.write_text(f"{check}\n{good}")

    _, addresses = start("--memory")
    page = ask(host(addresses["app"]), "GET", "/")
    queues.write_text(queues.read_text() + "  - name: late\n    rate: 1/s\n")

    assert page.status == 500
    eventually(lambda: ask(host(addresses["app"]), "GET", "/").text == "one", "the app")


SHOP = """
from flask import Flask

def serve():
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "the shop")
    return app
"""


def test_the_app_of_the_readme_is_served_and_prints_on_the_terminal(start, app_folder):
    """Without queue.yaml and cron.yaml it has the usual queues and the sweep."""
    [hello] = re.findall(r"^```python\n(.*?)^```$", text_of("README.md"), re.DOTALL | re.MULTILINE)
    assert len(hello.splitlines()) <= 15
    (app_folder / "hello.py").write_text(hello)
    (app_folder / "queue.yaml").unlink()
    process, addresses = start("--memory", "--target", "hello:serve")

    assert ask(host(addresses["app"]), "GET", "/").text == "Look at the terminal."
    queues = ask(host(addresses["console"]), "GET", "/api/v1/queues").json()["queues"]
    jobs = ask(host(addresses["console"]), "GET", "/api/v1/cron").json()["jobs"]
    eventually(
        lambda: "Hello, world!" in ask(host(addresses["console"]), "GET", "/api/v1/logs").text,
        "the greeting",
    )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert [queue["id"] for queue in queues] == ["default", "outbox"]
    assert [job["url"] for job in jobs] == ["/cron/sweep"]
    assert "app        Hello, world!" in errors


def test_a_package_brings_its_own_queues(start, app_folder):
    """`--target` alone is enough: queue.yaml and cron.yaml beside the module are taken."""
    package = app_folder / "examples" / "shop"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SHOP)
    (package / "queue.yaml").write_text("queue:\n- name: orders\n  rate: 5/s\n")
    (package / "cron.yaml").write_text("cron:\n- url: /cron/bill\n  schedule: every 1 hours\n")

    _, addresses = start("--memory", "--target", "examples.shop:serve")

    queues = ask(host(addresses["console"]), "GET", "/api/v1/queues").json()["queues"]
    assert ask(host(addresses["app"]), "GET", "/").text == "the shop"
    assert [queue["id"] for queue in queues] == ["orders"]
    assert "/cron/bill" in ask(host(addresses["console"]), "GET", "/cron").text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "nowhere:serve"], "There is no module 'nowhere'"),
        (["--target", "main:nothing"], "There is no 'nothing' in"),
        (["--target", "main"], "The target is written module:callable"),
        (["--queues", "absent.yaml"], "absent.yaml. Name the queue.yaml"),
        (["--cron", "absent.yaml"], "absent.yaml. Name the cron.yaml"),
        (["--service", "worker"], "--service must be NAME=URL"),
    ],
)
def test_a_wrong_argument_is_one_clear_sentence(refused, arguments, said):
    """Exit code 2, and no traceback."""
    code, errors = refused("--memory", *arguments)

    last = [line for line in errors.splitlines() if line.strip()][-1]
    assert code == 2
    assert said in last


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--frobnicate"], "--help lists the options"),
        (["--target", "main:number"], "name a function that returns the app"),
    ],
    ids=["at once", "by a worker"],
)
def test_a_start_that_is_refused_leaves_no_process(app_folder, arguments, said):
    """Exit code 2, no traceback, however far it came."""
    with (app_folder / "main.py").open("a") as main:
        main.write("\nnumber = 3\n")

    process = run(app_folder, "--memory", *arguments)
    everybody = psutil.Process(process.pid)
    printed, errors = process.communicate(timeout=60)

    last = [line for line in errors.splitlines() if line.strip()][-1]
    assert process.returncode == 2
    assert said in last
    assert printed == ""
    assert "Traceback" not in errors
    wait_gone([everybody])


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("queue.yaml", "queue:\n- name: x\n  rate: fast\n", "queue.yaml"),
        (
            "dispatch.yaml",
            "dispatch: [{url: a, service: b}]",
            "dispatch.yaml: dispatch: rule 1: url",
        ),
    ],
)
def test_a_wrong_file_is_one_clear_message(refused, app_folder, file, text, said):
    """The file and the field are named; there is no traceback."""
    (app_folder / file).write_text(text)

    code, errors = refused("--memory")

    assert code == 1
    assert said in errors
