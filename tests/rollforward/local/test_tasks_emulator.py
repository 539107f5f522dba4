"""`rollforward tasks-emulator`: Cloud Tasks alone, for every project and location."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from google.auth import jwt
from google.auth.transport import requests as auth_requests
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport
from google.oauth2 import id_token

from rollforward.cli import main
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from tests.contracts.clients.rest import call
from tests.contracts.conftest import Handler, serving
from tests.rollforward.local.conftest import eventually

OWN = "projects/demo-local/locations/us-central1/queues/own"
OTHER_PLACE = "projects/example.com:shop/locations/europe-west1"
OTHER = f"{OTHER_PLACE}/queues/other"


@contextmanager
def started(*options: str) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """Run the command on a free port; give what it prints, and its process."""
    command = [sys.executable, "-m", "rollforward", "tasks-emulator", "--port=0", "--json"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def client_of(address: str) -> Iterator[tasks_v2.CloudTasksClient]:
    """The official client, over gRPC."""
    with grpc.insecure_channel(address) as channel:
        yield tasks_v2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))


def check_pages(url: str) -> None:
    """The pages show the queues of both places, and a button deletes the paused task."""
    with requests.Session() as browser:
        queues = browser.get(f"{url}/", timeout=30).text
        assert "/tasks?queue=own" in queues
        assert "/tasks?queue=example.com:shop:europe-west1:other" in queues
        assert re.findall(r'<li><a href="([^"]+)"', queues) == ["/queues", "/tasks"]
        page = browser.get(f"{url}/tasks/own/t", timeout=30).text
        assert '"/logs' not in page
        token = re.findall(r'name="csrf_token" value="(\w+)"', page)[0]
        forms = [{}, {"csrf_token": token}]
        answers = [browser.post(f"{url}/tasks/own/t/delete", form, timeout=30) for form in forms]
    assert [answer.status_code for answer in answers] == [403, 200]
    assert browser.get(f"{url}/logs", timeout=30).status_code == 404


def test_a_run_from_start_to_stop(tmp_path: Path) -> None:
    """It delivers a task with its own token, keeps all through a kill, and ends on a signal."""
    options = [f"--data={tmp_path}", "--queue=own", f"--queue={OTHER}"]
    with serving() as handler, started(*options) as (shown, process):
        assert shown["queues"] == [OWN, OTHER]
        http = {"url": f"{handler.url}/in", "oidc_token": {"service_account_email": "a@b.c"}}
        with client_of(shown["address"]) as client:
            client.create_task(parent=OTHER, task={"http_request": http})
            assert handler.entered["/in"].wait(30)
            client.pause_queue(name=OWN)
            client.create_task(parent=OWN, task={"name": f"{OWN}/tasks/t", "http_request": http})
        process.kill()
        bearer = handler.received["/in"][0].headers["authorization"].removeprefix("Bearer ")

    with started(*options, "--ui=0") as (shown, process):
        status, task = call(shown["address"], "GET", f"/v2/{OWN}/tasks/t")
        assert (status, task["name"]) == (200, f"{OWN}/tasks/t")
        discovery = call(shown["address"], "GET", "/.well-known/openid-configuration")[1]
        assert discovery["issuer"] == shown["issuer"] == f"http://{shown['address']}"
        certs_url = f"{shown['issuer']}/oauth2/v1/certs"
        claims = id_token.verify_token(bearer, auth_requests.Request(), certs_url=certs_url)
        assert (claims["email"], claims["aud"]) == ("a@b.c", f"{handler.url}/in")
        check_pages(shown["ui"])
        assert call(shown["address"], "GET", f"/v2/{OWN}/tasks/t")[0] == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_an_app_of_two_services(tmp_path: Path) -> None:
    """Tasks go to the service that they, their queue or dispatch.yaml name."""
    rules = tmp_path / "dispatch.yaml"
    rules.write_text('dispatch: [{url: "*/reports/*", service: worker}]')
    with serving() as front, serving() as worker:
        services = [f"--service=default={front.url}", f"--service=worker={worker.url}"]
        options = ["--queue=own", f"--dispatch-yaml={rules}", *services]
        with started(*options) as (shown, _), client_of(shown["address"]) as client:
            override = {"name": OTHER, "app_engine_routing_override": {"service": "worker"}}
            client.create_queue(parent=OTHER_PLACE, queue=override)
            for queue, uri, service in (
                (OWN, "/home", ""),
                (OWN, "/resize", "worker"),
                (OWN, "/reports/1", "default"),
                (OTHER, "/overridden", ""),
            ):
                routing = {"service": service} if service else {}
                request = {"relative_uri": uri, "app_engine_routing": routing}
                client.create_task(parent=queue, task={"app_engine_http_request": request})
                handler = front if uri == "/home" else worker
                assert handler.entered[uri].wait(30), uri

            rules.write_text("dispatch: []")
            eventually(lambda: delivered(client, front, "/reports/2"), "the rules are gone")

    assert {*front.received} >= {"/home", "/reports/2"}
    assert {*worker.received} >= {"/resize", "/reports/1", "/overridden"}


def test_an_issuer_and_a_host_of_its_own(tmp_path: Path) -> None:
    """For callers that know the emulator by another name, as those in containers do."""
    queues, issuer = tmp_path / "queue.yaml", "http://tasks:8123"
    queues.write_text("queue: [{name: own, rate: 5/s}]")
    options = ["--host=0.0.0.0", f"--issuer={issuer}", f"--queue-yaml={queues}"]
    with serving() as handler, started(*options) as (shown, _):
        assert (shown["issuer"], shown["queues"]) == (issuer, [OWN])
        address = shown["address"].replace("localhost", "127.0.0.1")
        document = call(address, "GET", "/.well-known/openid-configuration")[1]
        assert document["issuer"] == issuer
        assert document["jwks_uri"] == f"http://{address}/oauth2/v3/certs"
        token = {"serviceAccountEmail": "a@b.c"}
        task = {"httpRequest": {"url": f"{handler.url}/in", "oidcToken": token}}
        assert call(address, "POST", f"/v2/{OWN}/tasks", {"task": task})[0] == 200
        assert handler.entered["/in"].wait(30)
        bearer = handler.received["/in"][0].headers["authorization"].removeprefix("Bearer ")
        certs = call(address, "GET", "/oauth2/v1/certs")[1]
        assert jwt.decode(bearer, certs)["iss"] == issuer


def delivered(client: tasks_v2.CloudTasksClient, handler: Handler, uri: str) -> bool:
    """Create a task, and return whether this handler got one of its kind."""
    client.create_task(parent=OWN, task={"app_engine_http_request": {"relative_uri": uri}})
    return handler.entered[uri].wait(0.5)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--queue=a b"], 2, "Queue name must be formatted"),
        (["--queue=projects/p/queues/q"], 2, "Queue name must be formatted"),
        (["--service=web"], 2, "--service must be NAME=URL"),
        (["--service=a=http://a", "--service=a=http://b"], 2, "got 'a' twice"),
        (["--dispatch-yaml={missing}"], 1, "missing.yaml"),
        (["--data={file}"], 2, "--data must be a folder"),
        (["--data={file}/below"], 1, "below cannot be used: [Errno"),
        (["--data={junk}"], 1, "junk cannot be used: file is not a database"),
        (["--project=a b"], 2, "--project and --location must name a place"),
        (["--location="], 2, "--project and --location must name a place"),
        (["--issuer=foo"], 2, "--issuer must begin with http"),
        (["--app-url=foo"], 2, "--app-url must begin with http"),
        (["--functions-url=foo"], 2, "--functions-url must begin with http"),
        (["--queue-yaml={broken}"], 1, "queue x: rate: must be like 5/s"),
        (["--queue-yaml={missing}"], 1, "missing.yaml"),
        (["--port={taken}"], 1, "Choose another --port"),
        (["--port=0", "--ui={taken}"], 1, "--ui cannot listen"),
    ],
)
def test_wrong_options(
    options: list[str], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that cannot be met is named, and nothing runs."""
    file = tmp_path / "file"
    file.write_text("")
    broken = tmp_path / "queue.yaml"
    broken.write_text("queue: [{name: x, rate: fast}]")
    junk = tmp_path / "junk"
    junk.mkdir()
    (junk / "tasks.sqlite").write_text("no database, however long it is" * 99)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        names = {
            "file": file,
            "broken": broken,
            "junk": junk,
            "missing": tmp_path / "missing.yaml",
            "taken": listener.getsockname()[1],
        }
        assert main(["tasks-emulator", *(option.format(**names) for option in options)]) == code

    assert words in capsys.readouterr().err


@pytest.fixture
def emulator() -> Iterator[RunningEmulator]:
    """An emulator of every place that delivers nothing."""
    with running(dispatching=False, every_place=True, queues=["own", OTHER]) as emulator:
        yield emulator


@pytest.mark.fast
def test_queues_of_two_places(emulator: RunningEmulator) -> None:
    """A list has the queues of its location only; a location is where a queue is."""
    with client_of(emulator.grpc_address) as client:
        names = [queue.name for queue in client.list_queues(parent=OTHER_PLACE)]
        project = OTHER_PLACE.partition("/locations/")[0]
        locations = client.list_locations(request={"name": project}).locations
        task = {"app_engine_http_request": {"relative_uri": "/in"}}
        host = client.create_task(
            parent=OTHER, task=task
        ).app_engine_http_request.app_engine_routing

    assert names == [OTHER]
    assert [location.location_id for location in locations] == ["us-central1", "europe-west1"]
    assert host.host == "example.com:shop.appspot.com"


@pytest.mark.fast
def test_operations_of_two_places(emulator: RunningEmulator) -> None:
    """An operation belongs to the location of its queue."""
    body = {"requests": [{"parent": OTHER, "task": {"httpRequest": {"url": "http://a.b/"}}}]}
    address = emulator.grpc_address
    operation = call(address, "POST", f"/v2/{OTHER}/tasks:batchCreate", body)[1]

    assert operation["name"].startswith(f"{OTHER_PLACE}/operations/")
    for parent, count in ((OTHER_PLACE, 1), (OWN.partition("/queues/")[0], 0)):
        listed = call(address, "GET", f"/v2/{parent}/operations")[1]
        assert len(listed.get("operations", [])) == count


@pytest.mark.fast
def test_the_control_api_of_two_places(emulator: RunningEmulator) -> None:
    """A queue of another place has an id with its place."""
    queue_id = "example.com:shop:europe-west1:other"
    headers = {"Content-Type": "application/json"}
    address = emulator.grpc_address

    queues = call(address, "GET", "/api/v1/queues")[1]["queues"]
    assert [queue["id"] for queue in queues] == ["own", queue_id]
    paused = call(address, "POST", f"/api/v1/queues/{queue_id}/pause", {}, headers)
    assert (paused[0], paused[1]["name"], paused[1]["state"]) == (200, OTHER, "paused")
    wrong = call(address, "POST", "/api/v1/queues/europe-west1:other/pause", {}, headers)
    assert wrong[0] == 400


@pytest.mark.fast
def test_a_queue_yaml_pauses_no_queue_of_another_place(tmp_path: Path) -> None:
    """A file speaks for the queues of one place."""
    path = tmp_path / "queue.yaml"
    path.write_text("queue:\n- name: one\n  rate: 1/s\n")
    settings = {"dispatching": False, "every_place": True, "watching": False}
    with running(**settings, queues=["own", OTHER], queue_yaml=path) as emulator:
        path.write_text("queue:\n- name: one\n  rate: 2/s\n")
        emulator.emulator.reload_queues(path)

        states = {queue.name: queue.message.state for queue in emulator.engine.queues.all()}
        assert states[OTHER] == tasks_v2.Queue.State.RUNNING
        assert states[OWN] == tasks_v2.Queue.State.PAUSED


@pytest.mark.fast
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_names_of_hosts(host: str) -> None:
    """Beyond the loopback interface it answers to any name, and never to another site's page."""
    with running(dispatching=False, beyond_loopback=True, host=host, queues=["own"]) as emulator:
        address = f"127.0.0.1:{emulator.emulator.port}"
        status = call(address, "GET", f"/v2/{OWN}", headers={"Host": "tasks:8123"})[0]
        assert status == (200 if host == "0.0.0.0" else 403)
        origin = {"Host": "tasks:8123", "Origin": "http://evil.example"}
        assert call(address, "GET", f"/v2/{OWN}", headers=origin)[0] == 403
