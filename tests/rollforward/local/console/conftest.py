"""A console at work on a platform without app and Java, and a person's browser on it."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import pytest

from rollforward.local import settings
from rollforward.local.app.server import MAX_WORKERS
from rollforward.local.cloudtasks.emulator import Emulator, EmulatorSettings
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.console import guards, slow_reads
from rollforward.local.console.server import Console
from rollforward.local.cron.cron import Cron
from rollforward.local.logs.tail import LogTail
from rollforward.local.service_table import ServiceState
from rollforward.local.services.mail import MailServer
from rollforward.local.traces.store import TraceStore
from tests.rollforward.local.conftest import QUEUE_YAML, ask

CONSOLE = Path(guards.__file__).parent
PORTS = ("APP", "CONSOLE", "TASKS", "DATASTORE", "MEMCACHE", "MAIL")
PAGES = [
    "/",
    "/queues",
    "/tasks",
    "/latency",
    "/workers",
    "/data",
    "/limits",
    "/costs",
    "/logs",
    "/traces",
    "/mail",
    "/cron",
    "/faults",
    "/queues/default/purge",
]
EVIL = "<script>alert(1)</script>"


@dataclass
class FakePlatform:
    """The dev server's parts that the console sees, with no app and no Java."""

    settings: settings.Settings
    tasks: Emulator
    cron: Cron
    mail: MailServer
    app_url: str
    reports_folder: Path
    datastore_address: str = "127.0.0.1:1"
    log_tail: LogTail = field(default_factory=LogTail)
    traces: TraceStore = field(default_factory=TraceStore)
    killed: list[int] = field(default_factory=list)
    wanted: int = 2

    def services(self):
        return [ServiceState("App", "stopped", "127.0.0.1:8080", "http://127.0.0.1:8080", EVIL)]

    def shell_environment(self):
        return {"GOOGLE_CLOUD_PROJECT": "demo-local"}

    def workers(self):
        return self.wanted

    async def resize(self, count):
        if not 1 <= count <= MAX_WORKERS:
            raise ValueError("1 to 8 workers")
        self.wanted = count

    def kill_worker(self):
        self.killed.append(42)
        return 42


class Browser:
    """Sends what a person's browser would: its cookie, and forms with their token."""

    def __init__(self, address):
        self.address = address
        page = self.get("/faults")
        self.cookie = page.headers["set-cookie"].split(";")[0]
        self.token = re.search(r'name="csrf_token" value="(\w+)"', self.get("/faults").text)[1]

    def get(self, path, **headers):
        cookie = {"Cookie": self.cookie} if hasattr(self, "cookie") else {}
        return ask(self.address, "GET", path, headers={**cookie, **headers})

    def post(self, path, fields=None, *, token=None, **headers):
        body = urlencode({"csrf_token": token or self.token, **(fields or {})})
        form = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": self.cookie}
        return ask(self.address, "POST", path, body=body, headers={**form, **headers})


@pytest.fixture
def platform(tmp_path, loop_thread, sweeping_app):
    """A platform whose tasks wait for the test."""
    (tmp_path / "queue.yaml").write_text(QUEUE_YAML)
    (tmp_path / "cron.yaml").write_text(
        "cron:\n- url: /cron/sweep\n  schedule: every 5 minutes\n  description: sweep <b>\n"
    )
    chosen = settings.read(["--memory"], {f"{name}_PORT": "0" for name in PORTS}, tmp_path)

    async def build():
        emulator = Emulator(
            EmulatorSettings(
                app_url=sweeping_app.url, queue_yaml=tmp_path / "queue.yaml", dispatching=False
            )
        )
        cron = Cron(sweeping_app.url)
        cron.load(tmp_path / "cron.yaml")
        await cron.open()
        return emulator, cron

    emulator, cron = loop_thread.run(build())
    mail = MailServer()
    mail.start()
    yield FakePlatform(chosen, emulator, cron, mail, sweeping_app.url, tmp_path)
    loop_thread.run(cron.stop())
    loop_thread.run(emulator.stop())
    mail.stop()


@pytest.fixture
def console(platform, loop_thread):
    """A console at work."""
    running = Console(platform, 0)

    async def start():
        await running.start()
        running.begin_sampling()

    loop_thread.run(start())
    yield running
    loop_thread.run(running.stop())


@pytest.fixture(autouse=True)
def _whole_lists(request, monkeypatch):
    """Let pages of data wait for their lists, however busy the machine is."""
    if not request.module.__name__.endswith("test_slow_reads"):
        monkeypatch.setattr(slow_reads, "ANSWER_S", 30.0)


@pytest.fixture
def browser(console):
    """A person's browser on the console."""
    return Browser(console.address)


@pytest.fixture
def engine(platform):
    """The Cloud Tasks engine behind the console."""
    return platform.tasks.engine


def add_task(engine, queue="default", body=b'{"name": "\\u5c71\\u7530"}', path="/tasks/work"):
    task = messages.Task()
    task.http_request.url = f"http://127.0.0.1:1{path}"
    task.http_request.body = body
    return engine.tasks.create(engine.place.queue_name(queue), task).name


def path_of(name):
    queue, task = re.search(r"/queues/(.+)/tasks/(.+)", name).groups()
    return f"/tasks/{queue}/{task}"
