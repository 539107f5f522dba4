"""The library as a package: what pip installs, beside modules of a user's own.

The wheel is built, and installed with its dependencies into environments that have nothing else.
They come from the index or from uv's cache; the versions are those of requirements-dev.txt.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.infra.documents import LOCAL_ENVIRONMENT, ROOT, text_of
from tests.infra.runs import sampling
from tests.infra.stack import PORTS, STOP_TIMEOUT_S, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

UV = str(Path(sys.executable).parent / "uv")
# An app as it may exist, with the commonest names of a Flask project.
APP = {
    "models.py": "PRICES = {'lamp': 2450}\n",
    "pipelines.py": "",
    "handlers/__init__.py": "from models import PRICES\n",
    "tests/__init__.py": "",
    "hello.py": next(re.finditer(r"```python\n(.*?)```", text_of("README.md"), re.S))[1],
    "greeting.py": """
import handlers
from hello import serve

with serve.test_client() as client:
    print(client.get("/health/live").status_code, len(handlers.PRICES))
    print(client.post("/tasks/greet", json={"name": "you"}).status_code)
""",
}
# The local platform, the kit for tests and the commands that start either need an extra.
# What needs an extra: the local platform, tests, and Apache Beam.
IMPORTS = """
import importlib, pkgutil, rollforward
EXTRAS = ("local", "testing", "cli.", "streams.beam.")
for module in pkgutil.walk_packages(rollforward.__path__, "rollforward."):
    if not module.name.removeprefix("rollforward.").startswith(EXTRAS):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` makes, in a folder of the test's own, without the network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def wheel_of(dist: Path) -> Path:
    (wheel,) = dist.glob("rollforward-*.whl")
    return wheel


def environment(folder: Path, requirement: str) -> Path:
    """Make an environment of a package and its dependencies alone; return its interpreter."""
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
    python = folder / "bin" / "python"
    constraints = ["-c", str(ROOT / "requirements-dev.txt")]
    command = [UV, "pip", "install", "-q", "--python", str(python), requirement, *constraints]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and not is_index_in_reach():
        pytest.skip("no package index is in reach, and uv's cache lacks what the wheel needs")
    assert done.returncode == 0, done.stderr
    return python


def is_index_in_reach() -> bool:
    """Return whether a package can be looked up without a cache."""
    command = [UV, "pip", "compile", "-q", "--no-deps", "--no-cache", "-"]
    return subprocess.run(command, input=b"flask", capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def lean(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment for a deployed app: no extra."""
    return environment(tmp_path_factory.mktemp("lean") / "env", str(wheel_of(dist)))


@pytest.fixture(scope="module")
def python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the local platform."""
    folder = tmp_path_factory.mktemp("local") / "env"
    return environment(folder, f"{wheel_of(dist)}[local]")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for name, text in APP.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_wheel_takes_no_name_but_its_own(dist: Path) -> None:
    """A user's models.py, handlers/ and tests/ are the user's, and no demo comes along."""
    with zipfile.ZipFile(wheel_of(dist)) as wheel:
        names = {Path(name).parts[0].partition("-")[0] for name in wheel.namelist()}

    assert names == {"rollforward"}


def test_a_wheel_has_each_file_of_the_library(dist: Path) -> None:
    """Templates, styles and tables as well as modules."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "rollforward"], cwd=ROOT, capture_output=True, text=True
    )
    with zipfile.ZipFile(wheel_of(dist)) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info" not in name}

    assert {"rollforward/py.typed", "rollforward/local/prices.toml"} <= packed
    assert set(filter(None, tracked.stdout.split("\0"))) <= packed


def test_an_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    """Whoever cannot use the wheel misses nothing: it has what the build reads."""
    (sdist,) = dist.glob("rollforward-*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (again,) = tmp_path.glob("*.whl")

    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel_of(dist)).namelist()
    assert not (folder / "main.py").exists()


def test_a_deployed_app_needs_no_extra(lean: Path, tmp_path: Path) -> None:
    """Each module imports that is not of the local platform: what they need is declared."""
    done = subprocess.run(
        [str(lean), "-c", IMPORTS], cwd=tmp_path, env=clean(), capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert {"rollforward.streams.pipeline", "rollforward.flask.oidc"} <= set(done.stdout.split())


def test_an_app_with_modules_of_its_own_says_hello(lean: Path, app: Path) -> None:
    """It imports the library from the wheel, and a stranger cannot run its tasks."""
    done = subprocess.run(
        [str(lean), "greeting.py"],
        cwd=app,
        env={**clean(), **LOCAL_ENVIRONMENT},
        capture_output=True,
        text=True,
    )

    assert (done.stdout, done.returncode) == ("200 1\n403\n", 0), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["run"], 1, "pip install 'rollforward[local]'"),
        (["deploy", "--check", "app:serve"], 1, "pip install 'rollforward[local]'"),
        (["dead", "--url", "http://127.0.0.1:1"], 3, "Nothing answers"),
        (["new", "blog"], 0, "Made blog/"),
    ],
)
def test_without_the_extra_a_command_works_or_says_how_to_install_it(
    lean: Path, tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    """A new app needs its templates, and a deployed one only the network."""
    (tmp_path / "app.py").write_text(APP["hello.py"])
    command = [str(lean.parent / "rollforward"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=clean(), capture_output=True, text=True)

    assert done.returncode == code, done.stderr
    assert text in (done.stderr if code else done.stdout)


@sampling.long
def test_the_first_task_of_the_readme_runs_on_the_local_platform(python: Path, app: Path) -> None:
    """Its page enqueues it, the Cloud Tasks emulator delivers it, and the terminal shows it."""
    with platform(python, app, "hello:serve") as (url, terminal):
        assert requests.get(url, timeout=30).status_code == 200
        until(lambda: "Hello, world!" in terminal.read_text(), 60)


@sampling.long
def test_the_command_of_the_emulators_image_runs_from_the_wheel(python: Path, app: Path) -> None:
    """The image has the wheel alone; its command takes a task, and keeps it through a kill."""
    with emulator_of_the_image(python, app) as queue:
        assert requests.post(f"{queue}:pause", timeout=30).status_code == 200
        name = f"{queue.partition('/v2/')[2]}/tasks/mine"
        task = {"name": name, "httpRequest": {"url": "http://a.b"}}
        assert requests.post(f"{queue}/tasks", json={"task": task}, timeout=30).status_code == 200
    with emulator_of_the_image(python, app) as queue:
        assert requests.get(f"{queue}/tasks/mine", timeout=30).json()["name"] == name


@contextlib.contextmanager
def emulator_of_the_image(python: Path, folder: Path) -> Iterator[str]:
    """Run the image's command until it is killed; yield the URL of a queue."""
    entry = re.findall(r"^ENTRYPOINT (.*)$", text_of("operations/emulator/Dockerfile"), re.M)
    program, *options = json.loads(entry[0])
    # A free port of this machine alone in place of the container's own.
    options = [{"0.0.0.0": "127.0.0.1", "8123": "0"}.get(word, word) for word in options]
    command = [str(python.parent / program), *options, "--json", "--queue=q", "--data=data"]
    with subprocess.Popen(command, cwd=folder, env=clean(), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            shown = json.loads(process.stdout.readline())
            yield f"http://{shown['address']}/v2/{shown['queues'][0]}"
        finally:
            process.kill()


@contextlib.contextmanager
def platform(python: Path, folder: Path, target: str) -> Iterator[tuple[str, Path]]:
    """Start `rollforward run`; yield the app's URL, and what the terminal shows."""
    terminal = folder / "terminal"
    command = [str(python.parent / "rollforward"), "run", target, "--memory", "--json"]
    env = {**clean(), **{f"{name}_PORT": "0" for name in PORTS}}
    with terminal.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--no-reload"], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None
    try:
        started = process.stdout.readline()
        assert started, terminal.read_text()
        yield json.loads(started)["app"], terminal
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)
        process.stdout.close()


def clean() -> dict[str, str]:
    """Return an environment that leads to no module of this repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@sampling.long
def test_types_of_an_app_are_checked_strictly_against_the_wheel(python: Path, app: Path) -> None:
    """Hello world as it is; the shop with the lines of the how-to, because ndb has no types."""
    (lines,) = re.findall(r"```toml\n(.*?)```", text_of("docs/howto/install.md"), re.S)
    (app / "pyproject.toml").write_text(lines)
    (app / "shop").mkdir()
    (app / "shop/__init__.py").write_text(text_of("docs/examples/shop/__init__.py"))
    (app / "wrong.py").write_text("from hello import greet\n\ngreet.enqueue(7)\n")

    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    done = subprocess.run(
        [*command, "hello.py", "shop", "wrong.py"],
        cwd=app,
        env=clean(),
        capture_output=True,
        text=True,
    )

    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert errors[0].startswith('wrong.py:3: error: No overload variant of "enqueue"')
