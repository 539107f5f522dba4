"""The library as a package: what pip installs, beside modules of a user's own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.infra.documents import LOCAL_ENVIRONMENT, ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

# An app as it may exist, with the commonest names of a Flask project.
APP = {
    "models.py": "PRICES = {'lamp': 2450}\n",
    "pipelines.py": "",
    "handlers/__init__.py": "from models import PRICES\n",
    "tests/__init__.py": "",
    "hello.py": """
import os

from flask import Flask

import handlers
import rollforward as rf


@rf.task
def greet(clients: rf.Clients, name: str) -> None:
    print("Hello", name)


def serve() -> Flask:
    return rf.serve(Flask(__name__), rf.Registry(greet))


app = serve()
with app.test_client() as client:
    print(client.get("/health/live").status_code, len(handlers.PRICES))
    print(client.post("/tasks/greet", json={"name": "you"}).status_code)
""",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel, and beside it what the wheel needs."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "-w", str(folder)]
    subprocess.run([*command, "--no-build-isolation", "-q"], check=True)
    (wheel,) = folder.glob("rollforward-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(site)]
    subprocess.run([*command, str(wheel), "-q"], check=True)
    # The requirements as they are pinned; ours come first.
    (here,) = (path for path in map(Path, sys.path) if path.name == "site-packages")
    (site / "requirements.pth").write_text(f"{here}\n")
    return python


def test_a_wheel_takes_no_name_but_its_own(python: Path) -> None:
    """A user's models.py, handlers/ and tests/ are the user's."""
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    names = {path.name.partition("-")[0] for path in site.iterdir()}

    assert names == {"rollforward", "requirements.pth"}


def test_an_app_with_modules_of_its_own_says_hello(python: Path, tmp_path: Path) -> None:
    """It imports the library from the wheel, and a stranger cannot run its tasks."""
    for name, text in APP.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [str(python), "hello.py"],
        cwd=tmp_path,
        env={**os.environ, **LOCAL_ENVIRONMENT, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )

    assert (done.stdout, done.returncode) == ("200 1\n403\n", 0), done.stderr
