"""Two versions of an app as processes, on one store and one queue, behind a router."""

from __future__ import annotations

import contextlib
import re
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil
import requests

from rollforward.flask.app import open_clients
from rollforward.flask.settings import Settings
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.runtime import Clients
from rollforward.testing.services import ACCOUNT, LOCATION, PROJECT, delete_all, empty
from tests.process.servers import Server, gunicorn
from tests.process.versions.router import Router, routing

FOLDER = Path(__file__).parent
POSTPONED = re.compile(r"-w\d+$")


@dataclass
class Deployment:
    """Two versions that serve, and what they share."""

    router: Router
    queue: RunningEmulator
    clients: Clients
    servers: dict[str, Server] = field(default_factory=dict)

    def kill_worker(self, version: str) -> None:
        process = self.servers[version].process
        assert process is not None
        psutil.Process(process.pid).children()[0].send_signal(signal.SIGKILL)

    def kill_instance(self, version: str) -> None:
        """Kill a version's master and workers: nobody is left who knows that they are dead."""
        process = self.servers[version].process
        assert process is not None
        master = psutil.Process(process.pid)
        for one in (master, *master.children(recursive=True)):
            one.send_signal(signal.SIGKILL)

    def ask_as_operator(self, method: str, path: str) -> requests.Response:
        """Ask with the token of cron and of operators, until a worker answers."""
        token = self.queue.engine.tokens.oidc_token(ACCOUNT, self.router.url)
        headers = {"Authorization": f"Bearer {token}"}
        while True:
            answer = requests.request(method, self.router.url + path, headers=headers, timeout=60)
            if answer.status_code != 503:
                break
            time.sleep(0.2)
        answer.raise_for_status()
        return answer

    def sweep(self) -> None:
        self.ask_as_operator("GET", "/cron/sweep")

    def run_waiting(self) -> None:
        """Run the tasks that wait for their version now, as `gcloud tasks run` does."""
        for task in self.queue.engine.history.newest("", "scheduled", 0, 500):
            if POSTPONED.search(task.name):
                self.queue.engine.tasks.run(task.name)


D = TypeVar("D", bound=Deployment)


@contextlib.contextmanager
def deployed(
    kind: type[D],
    folder: Path,
    targets: Mapping[str, str],
    datastore: str,
    memcached: str | None,
    **more: str,
) -> Iterator[D]:
    """Serve two versions, each by a gunicorn; all requests go to the first one yet.

    Args:
        targets: Where each version's app is made, as gunicorn takes it.
        more: Of their environment.
    """
    delete_all(datastore)
    empty(memcached)
    with (
        routing() as router,
        running(
            queue_yaml=FOLDER / "queue.yaml",
            app_url=router.url,
            project=PROJECT,
            location=LOCATION,
        ) as queue,
    ):
        environment = {
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "DATASTORE_EMULATOR_HOST": datastore,
            "CLOUD_TASKS_EMULATOR_HOST": queue.grpc_address,
            "MEMCACHE_HOSTS": memcached or "",
            "TASKS_URL": router.url,
            "TASKS_LOCATION": LOCATION,
            "TASKS_SERVICE_ACCOUNT": ACCOUNT,
            "TASKS_CERTS_URL": f"{queue.control_url}/oauth2/v1/certs",
            "SECRET_KEY": secrets.token_hex(32),
            **more,
        }
        clients = open_clients(Settings.from_environment(environment), {})
        deployment = kind(router, queue, clients)
        with contextlib.ExitStack() as stack:
            for version, target in targets.items():
                own = folder / version
                own.mkdir()
                server = stack.enter_context(gunicorn(own, target, **environment))
                deployment.servers[version] = server
                router.versions[version] = f"http://127.0.0.1:{server.port}"
            router.split(**{version: float(not n) for n, version in enumerate(targets)})
            stack.enter_context(clients.context())
            yield deployment
        clients.process_state.shutdown()
