"""What is deployed: indexes, the server's arguments, dependencies, and what stays at home."""

from __future__ import annotations

import datetime
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import ndb
from gunicorn.config import Config

import main
from docs.examples import raise_prices
from handlers.settings import DemoSettings
from pipelines.quilt.quilts import BATCHES
from pipelines.registry import APP
from rollforward.batches.callbacks import path_of
from rollforward.continuations.sources import EntitySource, Span
from tests.infra import tutorial
from tests.infra.documents import LOCAL_ENVIRONMENT, ROOT, cells, entity_modules, quoted, text_of
from tests.infra.pythons import versions


def test_what_an_own_app_takes_along_is_enough(tmp_path: Path) -> None:
    """The commands of the how-to, then an import of the tutorial's shop with that wheel alone."""
    howto = text_of("docs/howto/deploy.md").partition("## Deploy an app of your own\n")[2]
    commands = re.findall(r"```sh\n(.*?)```", howto, flags=re.DOTALL)[0]
    _, _, commands = commands.partition("\n")  # The first line says which folders.
    app = tmp_path / "shop"
    app.mkdir()
    for name, text in tutorial.files().items():
        if name.endswith(".py"):
            (app / name).write_text(text)
    for name in ("models.py", "handlers.py"):  # Of the app: no name of its own is taken.
        (app / name).write_text("")

    # What the targets need is installed: these are its tests. `python3` is the one that runs them.
    environment = {
        **os.environ,
        **{"FROM": str(ROOT), "TO": str(app), "MAKEFLAGS": "INSTALLED=", "PYTHONPATH": ""},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    subprocess.run(["bash", "-ec", commands], env=environment, check=True)
    *pins, wheel = (app / "requirements.txt").read_text().splitlines(keepends=True)
    (app / "wheel.txt").write_text(wheel)
    site = tmp_path / "site"
    install = "-m pip install --quiet --no-index --no-deps --require-hashes -r wheel.txt --target"
    subprocess.run([sys.executable, *install.split(), site], cwd=app, env=environment, check=True)
    code = "import shop, models, handlers, rollforward as r; print(r.__file__)"
    environment["PYTHONPATH"] = str(site)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=app, env=environment, capture_output=True, text=True
    )

    assert (done.stdout, done.stderr) == (f"{site}/rollforward/__init__.py\n", "")
    needed = [line.partition(";")[::2] for line in needs_of(site)]
    deployed = {name_of(line) for line, condition in needed if "extra" not in condition}
    assert len(deployed) > 10
    assert deployed <= {name_of(line) for line in pins}
    assert len((app / "rollforward.commit").read_text()) == 41


def needs_of(site: Path) -> list[str]:
    """Return what the wheel requires, as its metadata say."""
    (found,) = distributions(name="rollforward", path=[str(site)])
    return found.requires or []


def name_of(requirement: str) -> str:
    """Return the name in a requirement, as all spell it."""
    name = re.match(r"[A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", name.group().lower()) if name else ""


def test_the_entrypoint_of_an_own_app_names_the_app_and_calls_nothing() -> None:
    """`serve = rf.serve(app)` is an app: "shop:serve()" ended each worker at its start."""
    places = ("docs/howto/deploy.md", "docs/howto/install.md", "rollforward/gunicorn/__init__.py")
    named = [name for place in places for name in re.findall(r"shop:serve\S*", text_of(place))]

    assert len(named) >= len(places)
    assert not [name for name in named if "(" in name]


def test_no_query_of_the_models_needs_a_composite_index() -> None:
    """index.yaml is empty rightly: each query is a range of keys, an equality, or one order."""
    settings = DemoSettings.from_environment(LOCAL_ENVIRONMENT)
    with main.open_clients(settings).context():
        checked = [query for module in entity_modules() for query in queries_of(module)]
        checked.append(EntitySource(raise_prices.Book)._query(Span("", "")))
        checked.append(EntitySource(raise_prices.Book, key_prefix="b:")._query(Span("b:1", "b:2")))
        needy = [query for query in checked if needs_composite_index(query)]
        fussy = raise_prices.Book.query(raise_prices.Book._key > ndb.Key("Book", "a"))
        fussy = fussy.order(ndb.query.PropertyOrder("cents"))

    assert len(checked) >= 10
    assert not needy
    assert needs_composite_index(fussy)
    assert yaml.safe_load(text_of("index.yaml")) == {"indexes": []}


def queries_of(module: Any) -> Iterator[Any]:
    """Yield what the functions return that say "Return the query ..."."""
    for function in vars(module).values():
        if (getattr(function, "__doc__", None) or "").startswith("Return the query"):
            parameters = inspect.signature(function).parameters.values()
            now = datetime.datetime(2030, 5, 1)  # noqa: DTZ001
            samples: dict[str, Any] = {"datetime.datetime": now, "int": 1, "str": "x"}
            samples["Any"] = ndb.Key("ViewRow", "x")
            samples["Mapping[str, str]"] = {"queue": "mail"}
            needed = [each.annotation for each in parameters if each.default is each.empty]
            yield function(*[samples[annotation] for annotation in needed])


def needs_composite_index(query: Any) -> bool:
    """Tell by the rule of the service, for filters joined by AND."""
    filters = list(getattr(query.filters, "_nodes", [query.filters] if query.filters else []))
    equal = {node._name for node in filters if node._opsymbol == "="}
    ranged = {node._name for node in filters if node._opsymbol != "="}
    orders = [order.name for order in query.order_by or []]
    sorted_by = [name for name in orders if name not in equal]
    if not equal:
        return len(ranged | set(sorted_by)) > 1
    return bool((ranged | set(sorted_by)) - {"__key__"})


def gunicorn_arguments() -> dict[str, list[str]]:
    """Return the arguments of gunicorn in app.yaml and in the Dockerfile."""
    entrypoint = shlex.split(yaml.safe_load(text_of("app.yaml"))["entrypoint"])
    dockerfile = text_of("Dockerfile").replace("\\\n", " ")
    command = json.loads(re.findall(r"^CMD (\[.*\])$", dockerfile, flags=re.MULTILINE)[0])
    assert entrypoint[0] == command[0] == "gunicorn"
    return {"app.yaml": entrypoint[1:], "Dockerfile": command[1:]}


@pytest.mark.parametrize("where", ["app.yaml", "Dockerfile"])
def test_gunicorn_knows_its_arguments(where: str) -> None:
    """The app is served by threads, long requests are left alone, and nothing is opened early."""
    parsed = Config().parser().parse_args(gunicorn_arguments()[where])

    assert parsed.args == ["main:serve()"]
    assert parsed.config == "python:rollforward.gunicorn.config"
    assert (parsed.worker_class, parsed.workers, parsed.threads) == (None, 1, 32)
    assert (parsed.timeout, parsed.forwarded_allow_ips) == (0, "*")
    assert parsed.control_socket_disable is True
    assert not parsed.preload_app


def test_the_app_needs_nothing_that_is_left_at_home() -> None:
    """What main imports is copied into the image and not ignored on the way to App Engine."""
    at_home = ("docs", "site")  # Python has a module `site`, too.
    program = "import sys, main; print(*{name.partition('.')[0] for name in sys.modules})"
    imported = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {name for name in imported if (ROOT / name).is_dir() and name not in at_home} | {
        "main.py",
        "requirements.txt",
        "static",
        "templates",
    }
    copied = re.findall(r"^COPY (\S+) ", text_of("Dockerfile"), flags=re.MULTILINE)
    allowed = {line[1:] for line in text_of(".dockerignore").splitlines() if line.startswith("!")}
    ignored = {line.strip("/") for line in text_of(".gcloudignore").splitlines()}
    assert "pipelines" in ours
    assert ours == set(copied) == allowed
    assert not ours & ignored
    assert {"rollforward/local", "tests", ".dev", ".env.*", "app.deploy.yaml", "none"} <= ignored


def test_what_is_deployed_runs_on_the_newest_python_that_is_tested() -> None:
    """A runtime is named here after the tests ran on its Python, not when it comes out."""
    newest = versions()[-1]

    assert yaml.safe_load(text_of("app.yaml"))["runtime"] == f"python{newest.replace('.', '')}"
    assert f"FROM python:{newest}-slim\n" in text_of("Dockerfile")


def test_every_dependency_is_justified() -> None:
    """Whoever adds a package says why, and whoever removes one tidies up."""
    lines = (text_of("requirements.in") + text_of("requirements-dev.in")).splitlines()
    chosen = {line.strip() for line in lines if line and line[0] not in "#-"}
    rows = [row for row in cells("docs/adr/0006-dependencies.md") if row[0] != "Package"]
    assert {name for row in rows for name in quoted(row[0])} == chosen


@pytest.mark.parametrize("kind", ["sound", "unsound"])
def test_the_hooks_of_a_commit_pass_what_is_sound_and_stop_what_is_not(
    kind: str, tmp_path: Path
) -> None:
    """Each hook runs with what is installed, and can say no."""
    [repo] = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    unsound = {"ruff-format": "x  =  1\n"}
    file = tmp_path / "example.py"
    for hook in repo["hooks"]:
        mistakes = f"import os\n{'<' * 7} HEAD\n# {'recie' + 've'}\n\n"
        file.write_text("x = 1\n" if kind == "sound" else unsound.get(hook["id"], mistakes))
        done = subprocess.run([*words_of(hook), file], cwd=ROOT, capture_output=True, check=False)
        assert (done.returncode == 0) is (kind == "sound"), hook["id"]


def words_of(hook: dict[str, str]) -> list[str]:
    words = shlex.split(hook["entry"])
    return [words[0].replace(".venv/bin", str(Path(sys.executable).parent)), *words[1:]]


def queues() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / "queue.yaml").read_text())["queue"]
    return found


@pytest.mark.parametrize("queue", queues(), ids=lambda queue: queue["name"])
def test_no_task_waits_longer_than_five_seconds_to_be_tried_again(queue: dict[str, Any]) -> None:
    """After an outage, however long: what failed in it is not left to a back-off of a minute."""
    assert queue["retry_parameters"]["max_backoff_seconds"] <= 5


def test_the_end_of_a_quilt_waits_in_no_queue_of_anything_else() -> None:
    """Neither squares nor small chores hold it up, however many there are."""
    finish = APP.tasks["/tasks/quilt/finish"]

    ends = {finish.path, *(path_of(batch.name) for batch in BATCHES)}
    others = {task.queue for path, task in APP.tasks.items() if path not in ends}

    assert finish.queue not in others
