"""Start-up: the time of importing `main`, and the time until a new process has answered.

Each start is a process of its own, with gunicorn's hooks. The figure is its processor time, which
other work on the machine affects less than the clock; `raw` has the elapsed seconds as well. The
quickest of many starts counts. The first request goes to a page with a form, inside the process:
import, clients, app and answer, with a Datastore emulator. The command `tasks-emulator` runs until
the answer to a first call, over REST and over gRPC; `raw` has its memory at that time.

    .venv/bin/python -m benchmarks.startup FOLDER

compares another copy of this repository with this one, in turns. The figures of before and after in
docs/performance/start-up.md come from it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import psutil
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from benchmarks.harness.results import Result, quartiles
from rollforward.local.services.standalone import datastore_emulator

ROOT = Path(__file__).parent.parent
STARTS = 15  # After a first one, which does not count as it may compile bytecode.
PAGES = {"live": "/health/live", "page": "/sums"}
PROGRAM = """
import json, os, queue, resource, runpy, sys, time, types
old_path = "gunicorn.conf.py"  # The path in earlier versions.
hooks = runpy.run_path(old_path if os.path.exists(old_path) else "rollforward/gunicorn/config.py")

def hook(name, *arguments):
    if name in hooks:  # An earlier version had none.
        hooks[name](*arguments)

began = time.perf_counter()

def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return [used.ru_utime + used.ru_stime, time.perf_counter() - began]

base = spent()
hook("post_fork", types.SimpleNamespace(SIG_QUEUE=queue.SimpleQueue()), None)
import main
after = {"import": spent()}
from handlers.settings import DemoSettings
settings = DemoSettings.from_environment(os.environ)
client = main.create_app(settings, main.open_clients(settings)).test_client()
hook("post_worker_init", types.SimpleNamespace(wsgi=client.application))
for name, path in json.loads(sys.argv[1]).items():
    assert client.get(path, base_url="http://127.0.0.1").status_code == 200, path
    after[name] = spent()
print(json.dumps({name: [a - b for a, b in zip(at, base)] for name, at in after.items()}))
os._exit(0)  # A regular exit of gRPC takes a moment.
"""
IMPORT = """
import importlib, sys, time
began = time.process_time()
importlib.import_module(sys.argv[1])
print(time.process_time() - began)
"""
ENV = {
    "GOOGLE_CLOUD_PROJECT": "demo-startup",
    "CLOUD_TASKS_EMULATOR_HOST": "127.0.0.1:9",
    "TASKS_URL": "http://127.0.0.1",
    "TASKS_LOCATION": "us-central1",
    "TASKS_SERVICE_ACCOUNT": "tasks@demo-startup.iam.gserviceaccount.com",
    "TASKS_CERTS_URL": "http://127.0.0.1:9/certs",
    "TASKS_ISSUER": "http://127.0.0.1:9",
    "SECRET_KEY": secrets.token_hex(32),
    "SMTP_HOST": "127.0.0.1:9",
    "LOG_LEVEL": "WARNING",
}

Starts = dict[str, list[tuple[float, float]]]  # By event: (processor, clock) seconds.


def measure() -> Iterator[Result]:
    """Measure this repository."""
    yield door()
    yield from map(tasks_emulator, FIRST_CALLS)
    with datastore_emulator() as datastore:
        [starts] = starts_of([ROOT], datastore)
    for name, versus in VERSUS.items():
        yield Result(f"startup.{name}", _best(starts, name), "s", versus, raw=_raw(starts, name))


def door() -> Result:
    """Compare the processor times of `import rollforward` and of `import flask`, in turns."""
    times: dict[str, list[float]] = {"rollforward": [], "flask": []}
    for turn in range(STARTS + 1):
        for name, spent in times.items():
            command = [sys.executable, "-c", IMPORT, name]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            if turn:  # The first start may compile bytecode.
                spent.append(float(done.stdout))
    ratio = min(times["rollforward"]) / min(times["flask"])
    raw = {f"{name}_s": quartiles(spent) for name, spent in times.items()}
    versus = "processor time of `import rollforward` to that of `import flask`"
    return Result("startup.door", ratio, "ratio", versus, target=1, at_least=False, raw=raw)


def tasks_emulator(api: str) -> Result:
    """Start the Cloud Tasks emulator repeatedly, and call it once each time."""
    processor, clock, memory = [], [], []
    for turn in range(STARTS + 1):
        began = time.perf_counter()
        with subprocess.Popen(EMULATOR, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                FIRST_CALLS[api](json.loads(process.stdout.readline())["address"])
                took_s, started = time.perf_counter() - began, psutil.Process(process.pid)
                if turn:  # The first start may compile bytecode.
                    clock.append(took_s)
                    processor.append(sum(started.cpu_times()[:2]))
                    memory.append(started.memory_info().rss / 1e6)
            finally:
                process.kill()
    raw = {"clock_s": quartiles(clock), "memory_mb": quartiles(memory)}
    versus = f"processor time of `rollforward tasks-emulator` until a first call over {api}"
    name = f"startup.tasks_emulator_{api}"
    return Result(name, min(processor), "s", versus, target=0.5, at_least=False, raw=raw)


def _call_rest(address: str) -> None:
    urllib.request.urlopen(f"http://{address}/v2/{QUEUE}", timeout=60).close()


def _call_grpc(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        transport = CloudTasksGrpcTransport(channel=channel)
        tasks_v2.CloudTasksClient(transport=transport).get_queue(name=QUEUE)


QUEUE = "projects/demo-local/locations/us-central1/queues/mails"
EMULATOR = [
    *(sys.executable, "-m", "rollforward", "tasks-emulator"),
    *("--port=0", "--json", "--queue=mails"),
]
FIRST_CALLS = {"rest": _call_rest, "grpc": _call_grpc}

VERSUS = {
    "import": "processor time of `import main`",
    "live": "processor time until /health/live has answered",
    "page": "processor time until a page with a form has answered, too",
}


def starts_of(folders: list[Path], datastore: str) -> list[Starts]:
    """Start the app of each folder repeatedly, in turns."""
    starts_by_folder: list[Starts] = [{} for _ in folders]
    for turn in range(STARTS + 1):
        for folder, starts in zip(folders, starts_by_folder, strict=True):
            for name, (processor_s, clock_s) in _start(folder, datastore).items():
                if turn:  # The first start may compile bytecode.
                    starts.setdefault(name, []).append((processor_s, clock_s))
    return starts_by_folder


def _start(folder: Path, datastore: str) -> Mapping[str, tuple[float, float]]:
    env = {**os.environ, **ENV, "DATASTORE_EMULATOR_HOST": datastore}
    command = [sys.executable, "-c", PROGRAM, json.dumps(PAGES)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _best(starts: Starts, name: str) -> float:
    return min(processor_s for processor_s, _ in starts[name])


def _raw(starts: Starts, name: str) -> dict[str, object]:
    processor, clock = zip(*starts[name], strict=True)
    return {"processor_s": quartiles(processor), "clock_s": quartiles(clock)}


def main() -> int:
    """Compare this repository with another copy of it."""
    with datastore_emulator() as datastore:
        theirs, ours = starts_of([Path(sys.argv[1]).resolve(), ROOT], datastore)
    for name in VERSUS:
        their_s, our_s = _best(theirs, name), _best(ours, name)
        print(f"{name}: {their_s:.3f} s before, {our_s:.3f} s now, {our_s / their_s:.2f} of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
