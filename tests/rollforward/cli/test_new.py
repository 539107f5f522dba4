"""`rollforward new`: the app that it makes runs, passes its tests, and sells exactly once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from rollforward.cli import main
from tests.infra.runs import sampling
from tests.infra.stack import ROOT, Stack, running_stack, until
from tests.rollforward.local.installed import NEEDS_DATASTORE

LIMIT_S = 60.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new app, made once."""
    folder = tmp_path_factory.mktemp("new")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["new", "shop"]) == 0
    return folder / "shop"


@pytest.mark.fast
@pytest.mark.parametrize(
    "name", ["", "Shop", "1shop", "-shop", "shop_1", "../shop", "a/b", "s" * 41, "läden", "a b"]
)
def test_a_bad_name_makes_nothing(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["new", name])
    except SystemExit as ended:  # argparse takes "-shop" for an option.
        code = ended.code

    assert code == 2
    assert capsys.readouterr().err != ""
    assert list(folder.iterdir()) == []


@pytest.mark.fast
def test_a_folder_that_holds_anything_is_left_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "note").write_text("mine")
    (folder / "blog").write_text("a file")

    assert (main(["new", "shop"]), main(["new", "blog"])) == (2, 2)
    assert "choose another name" in capsys.readouterr().err
    assert [path.name for path in (folder / "shop").iterdir()] == ["note"]
    assert (folder / "blog").read_text() == "a file"


@pytest.mark.fast
def test_an_empty_folder_is_filled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With all files, under the app's name, and none of the template's own names."""
    (folder / "shop").mkdir()

    assert main(["new", "shop"]) == 0
    assert capsys.readouterr().out.endswith("  cd shop\n  rollforward run\n")
    files = {
        str(p.relative_to(folder / "shop")) for p in (folder / "shop").rglob("*") if p.is_file()
    }
    assert files == {
        *(
            ".dockerignore",
            ".gcloudignore",
            ".gitignore",
            "Dockerfile",
            "README.md",
            "app.py",
            "app.yaml",
        ),
        *("cron.yaml", "pytest.ini", "queue.yaml", "requirements.txt", "tests/test_app.py"),
    }
    assert "<h1>shop</h1>" in (folder / "shop" / "app.py").read_text()
    assert all("@NAME@" not in (folder / "shop" / name).read_text() for name in files)


@pytest.mark.parametrize(("name", "key"), [("Dockerfile", "CMD ["), ("app.yaml", "entrypoint:")])
def test_gunicorn_starts_a_new_app_as_it_starts_the_demo(shop: Path, name: str, key: str) -> None:
    """With the worker, the threads and the limits of this library."""

    def words(folder: Path) -> set[str]:
        start = (folder / name).read_text().partition(key)[2].partition("\n\n")[0]
        return set(re.findall(r"[^\s\",\[\]\\>]+", start))

    assert words(shop) - {"app:serve"} == words(ROOT) - {"main:serve()"}
    assert "python:rollforward.gunicorn.config" in words(shop)


PATH = os.environ["PATH"]


def output_of(folder: Path, *command: str, **environment: str) -> str:
    """Run a Python module in a folder; return what it wrote, and "0" first if it succeeded."""
    env = {"PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT), "NO_COLOR": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=env, capture_output=True, text=True
    )
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


CONFIG = str(ROOT / "pyproject.toml")
MYPY = ("--config-file", CONFIG, "app.py", "tests/test_app.py")


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--config", CONFIG, "--ignore", "T20,I001", "."),
        ("ruff", "format", "--check", "--config", CONFIG, "."),
        pytest.param(
            ("mypy", "--strict", "--allow-subclassing-any", "--follow-imports=silent", *MYPY),
            marks=sampling.long,
        ),
    ],
    ids=["lint", "format", "types"],
)
def test_a_new_app_is_sound_python(shop: Path, command: tuple[str, ...]) -> None:
    """By the style of this library, and by its strict types."""
    output = output_of(shop, *command)

    assert output.startswith("0\n"), output


@sampling.long
@pytest.mark.process
@NEEDS_DATASTORE
def test_a_new_app_passes_its_tests(shop: Path) -> None:
    """With the plugin that an installed package brings; some are on emulators, with every fault."""
    output = output_of(shop, "pytest", "-q", "-p", "rollforward.testing.plugin", PATH=PATH)

    assert output.startswith("0\n"), output
    assert re.search(r"^[1-9]\d* passed", output, flags=re.MULTILINE)
    assert re.search(r"explored [1-9]\d remote calls in [1-9]\d plays", output)


@pytest.fixture(scope="module")
def running(shop: Path) -> Iterator[Stack]:
    """The new app on the local platform."""
    with running_stack("app:serve", folder=shop, program=("rollforward", "run")) as stack:
        yield stack


@pytest.mark.process
@NEEDS_DATASTORE
def test_a_form_that_is_sent_twice_sells_and_ships_once(running: Stack) -> None:
    for _ in range(2):
        assert running.press("/sell", sale_id="f" * 32, quantity="2").status_code == 200
    until(lambda: "2 sold, 2 shipped" in requests.get(running.app, timeout=30).text, LIMIT_S)

    running.control("/api/v1/wait-idle", {})
    tasks = running.control("/api/v1/tasks")["tasks"]
    paths = [task["path"] for task in tasks]
    assert (paths.count("/tasks/ship"), paths.count("/tasks/greet")) == (1, 2)
    assert "2 sold, 2 shipped" in requests.get(running.app, timeout=30).text


@pytest.mark.process
@NEEDS_DATASTORE
@pytest.mark.parametrize("quantity", ["0", "10", "two", ""])
def test_a_form_that_makes_no_sense_sells_nothing(running: Stack, quantity: str) -> None:
    before = requests.get(running.app, timeout=30).text.rpartition("<p>")[2]

    assert running.press("/sell", quantity=quantity).status_code == 400
    forged = requests.post(f"{running.app}/sell", {"quantity": "1", "sale_id": "x"}, timeout=30)
    assert forged.status_code == 403
    assert requests.get(running.app, timeout=30).text.rpartition("<p>")[2] == before
