"""What the documents name exists, and what exists is named. Nothing here uses the network."""

from __future__ import annotations

import ast
import datetime
import doctest
import hashlib
import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import ndb
from gunicorn.config import Config

import main
from demos.registry import APP
from docs.examples import count_visits, raise_prices, ship_purchases, sum_up_sales
from handlers.settings import Settings
from pipelines.continuations.sources import EntitySource, Span

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PACKAGES = ("handlers", "demos", "pipelines", "models", "devserver")
LOCAL_ENVIRONMENT = {
    "GOOGLE_CLOUD_PROJECT": "demo-docs",
    "DATASTORE_EMULATOR_HOST": "127.0.0.1:1",
    "CLOUD_TASKS_EMULATOR_HOST": "127.0.0.1:1",
    "TASKS_URL": "http://127.0.0.1:1",
    "TASKS_SERVICE_ACCOUNT": "tasks@demo-docs.iam.gserviceaccount.com",
    "SMTP_HOST": "127.0.0.1:1",
    "SECRET_KEY": hashlib.sha384(b"the key of these tests").hexdigest(),
}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sources(*folders: str) -> list[Path]:
    """Return the Python files of some folders, and main.py."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [ROOT / "main.py", *found]


def cells(document: str, section: str = "") -> list[list[str]]:
    """Return the rows of the tables in a document, or in one section of it."""
    text = text_of(document)
    if section:
        text = re.split(r"^## ", text.partition(f"## {section}\n")[2], flags=re.MULTILINE)[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if set("".join(row)) - set("-| :")]


def quoted(text: str) -> set[str]:
    """Return what stands between backticks, blocks of code aside."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return set(re.findall(r"`([^`\n]+)`", prose))


# Links and names


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_relative_link_resolves(document: Path) -> None:
    """A link to a file of ours leads to a file, and its anchor to a heading."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_path_named_in_a_document_exists(document: Path) -> None:
    """A file or folder of ours that a document names is there."""
    folders = "handlers|demos|pipelines|models|devserver|tests|benchmarks|docs|templates|static"
    text = document.read_text(encoding="utf-8")
    paths = set(re.findall(rf"(?<![\w./])(?:{folders})/[\w./-]+\.(?:py|md|html|css|js)", text))
    missing = sorted(path for path in paths if not (ROOT / path).exists())
    assert not missing


def test_every_document_that_the_code_names_exists() -> None:
    """A comment that sends its reader to a document does not send them nowhere."""
    pattern = r"(?<![\w/.])docs/(?:adr/\d{4}|[\w/-]+\.md)"
    files = [*sources(*PACKAGES, "tests"), *ROOT.glob("*.yaml"), ROOT / "Dockerfile"]
    mentions = {
        (named(path), name)
        for path in files
        for name in re.findall(pattern, path.read_text(encoding="utf-8"))
    }
    assert mentions
    missing = [(path, name) for path, name in sorted(mentions) if not list(ROOT.glob(f"{name}*"))]
    assert not missing


def test_every_decision_is_listed_and_complete() -> None:
    """Each ADR has its parts, a number of its own, and a place in the list."""
    decisions = sorted((ROOT / "docs/adr").glob("*.md"))
    listed = re.findall(r"\]\(adr/([\w.-]+)\)", text_of("docs/architecture.md"))
    assert {path.name for path in decisions} == set(listed)
    assert len({path.name[:4] for path in decisions}) == len(decisions)
    for path in decisions:
        headings = re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequence"], path.name


def test_the_glossary_defines_each_word_once_and_in_order() -> None:
    """A word has one meaning, and is found where a reader looks for it."""
    words = re.findall(r"^\*\*(.+?)\*\*: ", text_of("docs/glossary.md"), flags=re.MULTILINE)
    assert len(words) > 20
    assert words == sorted(set(words), key=str.casefold)


# Settings


def variables_read() -> set[str]:
    """Return the environment variables that stand in the modules which read the environment."""
    found: set[str] = set()
    for path in sources(*PACKAGES):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(ast.walk(tree))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
        if "environ" not in names and "env" not in arguments:
            continue
        texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
        strings = {text for text in texts if isinstance(text, str)}
        found |= {text for text in strings if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", text)}
    return found


def variables_documented() -> set[str]:
    return {
        name for name in quoted(text_of("docs/settings.md")) if re.fullmatch("[A-Z_0-9]+", name)
    }


def test_every_variable_that_is_read_is_documented() -> None:
    """Nobody has to read the code to find a setting."""
    assert "SECRET_KEY" in variables_read()
    assert variables_read() - variables_documented() == set()


def test_every_documented_variable_is_read() -> None:
    """A setting that has gone from the code goes from the documents."""
    rows = [*cells("docs/settings.md", "The app"), *cells("docs/settings.md", "The local platform")]
    listed = {name for row in rows[1:] for name in quoted(row[0])}
    known_elsewhere = {"PATH"}  # Read as env.get("PATH"): no underscore to find it by.
    assert len(listed) > 25
    assert listed - variables_read() - known_elsewhere == set()


def test_the_readme_shows_no_setting_that_settings_md_lacks() -> None:
    """The short list is part of the long one."""
    listed = {name for row in cells("README.md", "Settings")[1:] for name in quoted(row[0])}
    assert listed
    assert listed <= variables_documented()


def test_the_example_environment_starts_the_app() -> None:
    """.env.example holds only what is read, and all that an app on a laptop needs but a key."""
    lines = [line for line in text_of(".env.example").splitlines() if line and line[0] != "#"]
    env = dict(line.split("=", 1) for line in lines)

    settings = Settings.from_environment(env | {"SECRET_KEY": LOCAL_ENVIRONMENT["SECRET_KEY"]})

    assert settings.is_local
    assert not env["SECRET_KEY"]
    assert set(env) <= variables_read()


def test_app_yaml_sets_only_what_is_read_and_refuses_to_run_unset() -> None:
    """Deployed as it is, the app does not start; filled in, it does."""
    given = yaml.safe_load(text_of("app.yaml"))["env_variables"]
    platform = {"GAE_ENV": "standard", "GOOGLE_CLOUD_PROJECT": "some-project"}
    filled = {**given, "SECRET_KEY": LOCAL_ENVIRONMENT["SECRET_KEY"], "SMTP_HOST": "relay:587"}

    with pytest.raises(ValueError, match="is not set"):
        Settings.from_environment({**platform, **given})

    assert set(given) <= variables_read()
    assert not Settings.from_environment({**platform, **filled}).is_local


# Routes, queues, cron, targets


@pytest.fixture(scope="module")
def app() -> Any:
    settings = Settings.from_environment(LOCAL_ENVIRONMENT)
    return main.create_app(settings, main.open_clients(settings))


def test_every_route_is_documented_and_every_documented_route_exists(app: Any) -> None:
    """The table of routes is the map of URLs, by path and method."""
    cells_of_routes = [row[0] for row in cells("docs/architecture.md", "Routes")[1:]]
    documented = {route for cell in cells_of_routes for route in quoted(cell)}
    rules = [
        (rule.rule, (rule.methods or set()) - {"HEAD", "OPTIONS"})
        for rule in app.url_map.iter_rules()
    ]
    methods_of: dict[str, set[str]] = {}
    for path, methods in rules:
        methods_of.setdefault(path, set()).update(methods)
    # The guarded catch-alls take any method, to refuse it.
    any_method = {path for path, methods in methods_of.items() if len(methods) > 2}
    expected = {
        f"{method} {path}"
        for path, methods in methods_of.items()
        for method in ([] if path in any_method else methods)
    }
    assert documented - {"POST /tasks/<path:rest>", "/cron/<path:rest>"} == expected
    assert any_method == {"/tasks/<path:rest>", "/cron/<path:rest>"}


def test_every_task_is_documented() -> None:
    """The tasks that can be delivered stand under the routes."""
    documented = {
        name for name in quoted(text_of("docs/architecture.md")) if re.match(r"/tasks/\w", name)
    }
    assert documented == set(APP.tasks)


def test_queues_in_use_exist_and_queues_that_exist_are_used_and_documented() -> None:
    """A task in a queue that is not deployed would never be created."""
    declared = {queue["name"] for queue in yaml.safe_load(text_of("queue.yaml"))["queue"]}
    used = {task.queue for task in APP.tasks.values()}
    documented = {
        name for row in cells("docs/architecture.md", "Queues")[1:] for name in quoted(row[0])
    }
    assert declared == used == documented


def test_the_queues_of_cloud_run_are_those_of_queue_yaml() -> None:
    """Made by hand, a queue has the rates that queue.yaml gives it."""
    words = deploy_commands().split()
    starts = [i for i, _ in enumerate(words) if words[i : i + 3] == ["tasks", "queues", "create"]]
    made = {words[i + 3]: words[i + 4 : i + 11] for i in starts}
    for queue in yaml.safe_load(text_of("queue.yaml"))["queue"]:
        options = made.pop(queue["name"])
        retries = queue["retry_parameters"]
        assert "--max-attempts=unlimited" in options
        assert f"--max-dispatches-per-second={queue['rate'].removesuffix('/s')}" in options
        assert f"--max-concurrent-dispatches={queue['max_concurrent_requests']}" in options
        assert f"--min-backoff={retries['min_backoff_seconds']}s" in options
        assert f"--max-backoff={retries['max_backoff_seconds']}s" in options
    assert not made


def deploy_commands() -> str:
    blocks = re.findall(r"```\n(.*?)```", text_of("docs/howto/deploy.md"), flags=re.DOTALL)
    return "\n".join(blocks).replace("\\\n", " ")


def test_every_cron_url_is_a_route_and_every_sweep_is_scheduled(app: Any) -> None:
    """The scheduler calls what exists, and whatever waits for it is called."""
    scheduled = {job["url"] for job in yaml.safe_load(text_of("cron.yaml"))["cron"]}
    routes = {
        rule.rule
        for rule in app.url_map.iter_rules("cron.sweep_continuations")
        if "GET" in (rule.methods or set())
    }
    routes |= {
        rule.rule
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/cron/") and not rule.arguments
    }
    assert scheduled == routes
    assert all(url in text_of("docs/howto/deploy.md") for url in scheduled)


def test_every_make_target_that_is_named_exists_and_all_are_explained() -> None:
    """The documents and the Makefile know the same targets."""
    targets = set(re.findall(r"^([a-z]+):.*## ", text_of("Makefile"), flags=re.MULTILINE))
    mentions: set[str] = set()
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        mentions |= set(re.findall(r"(?:`|^|\n)make ([a-z]+)", text))
    explained = {
        name.removeprefix("make ")
        for row in cells("CONTRIBUTING.md")
        for name in quoted(row[0])
        if name.startswith("make ")
    }
    assert mentions <= targets
    assert explained == targets


# Invariants


def claims_in(path: Path) -> Iterator[ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def invariants_of(test: ast.FunctionDef) -> set[str]:
    """Return the invariants that a test says it proves, first thing in its docstring."""
    said = re.match(r"[A-Z]\d+(, [A-Z]\d+)*(?=:| )", ast.get_docstring(test) or "")
    return set(said.group().split(", ")) if said else set()


def test_every_invariant_names_tests_that_exist() -> None:
    """What is called proved is proved by a test that is there, and names no other invariant."""
    invariant = ""
    for row in cells("docs/invariants.md")[1:]:
        if row[-1] == "Proved by":
            continue
        invariant = row[0] or invariant
        for reference in quoted(row[-1]):
            path, _, name = reference.partition("::")
            found = {test.name: test for test in claims_in(ROOT / path)}
            assert name in found, reference
            said = invariants_of(found[name])
            assert not said or invariant in said, f"{reference} says that it proves {said}"


def test_every_invariant_that_a_test_names_is_listed() -> None:
    """A test that proves an invariant of the data is not forgotten in the list."""
    listed = {row[0] for row in cells("docs/invariants.md")[1:]}
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    claimed = {name for path in files for test in claims_in(path) for name in invariants_of(test)}
    # S numbers hostile requests and M measurements: the list has the most telling ones only.
    of_data = {name for name in claimed if name[0] not in "SM"}
    assert of_data
    assert of_data <= listed


# Code in documents, and examples in code


def modules_with_doctests() -> list[str]:
    found = [path for path in sources(*PACKAGES) if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found]


@pytest.mark.parametrize("name", modules_with_doctests())
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    """An example shows what the function really returns."""
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_readme_shows_the_example_as_it_runs() -> None:
    """The code in the README is the code of the example, to the letter."""
    source = text_of("docs/examples/raise_prices.py")
    shown = source.partition("# README: from here\n")[2].partition("# README: to here\n")[0]
    readme = text_of("README.md")
    assert shown.strip()
    assert f"<!-- docs/examples/raise_prices.py -->\n```python\n{shown.strip()}\n```\n" in readme


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_does_what_the_readme_says(
    kind: str, datastore_address: Callable[[str], str], cloud_tasks: Any
) -> None:
    """Started twice and delivered twice, each book gets dearer once."""
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said, prices = raise_prices.walk(clients, cloud_tasks)

    assert f"{said}; prices in cents: {prices}\n" in text_of("README.md")


def test_the_howto_shows_the_example_of_the_outbox_as_it_runs() -> None:
    """The code in the howto is the code of the example, to the letter."""
    source = text_of("docs/examples/ship_purchases.py")
    shown = source.partition("# howto: from here\n")[2].partition("# howto: to here\n")[0]
    howto = text_of("docs/howto/enqueue-in-a-transaction.md")
    assert shown.strip()
    assert f"<!-- docs/examples/ship_purchases.py -->\n```python\n{shown.strip()}\n```\n" in howto


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_of_the_outbox_does_what_the_howto_says(
    kind: str, datastore_address: Callable[[str], str], cloud_tasks: Any
) -> None:
    """What was committed is shipped, what was aborted is not, and a dead process loses nothing."""
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said = ship_purchases.play(clients, cloud_tasks)

    assert f"{said}\n" in text_of("docs/howto/enqueue-in-a-transaction.md")


def test_the_howto_shows_the_example_of_the_views_as_it_runs() -> None:
    """The code in the howto is the code of the example, to the letter."""
    source = text_of("docs/examples/sum_up_sales.py")
    shown = source.partition("# howto: from here\n")[2].partition("# howto: to here\n")[0]
    howto = text_of("docs/howto/declare-a-view.md")
    assert shown.strip()
    assert f"<!-- docs/examples/sum_up_sales.py -->\n```python\n{shown.strip()}\n```\n" in howto


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_of_the_views_does_what_the_howto_says(
    kind: str, datastore_address: Callable[[str], str], cloud_tasks: Any
) -> None:
    """Delivered twice, rows follow what is saved, moved and deleted, and what is built anew."""
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said = "\n".join(sum_up_sales.play(clients, cloud_tasks))

    assert f"docs.examples.sum_up_sales\n{said}\n```\n" in text_of("docs/howto/declare-a-view.md")


def test_the_howto_shows_the_example_of_the_fork_join_queue_as_it_runs() -> None:
    """The code in the howto is the code of the example, to the letter."""
    source = text_of("docs/examples/count_visits.py")
    shown = source.partition("# howto: from here\n")[2].partition("# howto: to here\n")[0]
    howto = text_of("docs/howto/gather-writes.md")
    assert shown.strip()
    assert f"<!-- docs/examples/count_visits.py -->\n```python\n{shown.strip()}\n```\n" in howto


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_of_the_fork_join_queue_does_what_the_howto_says(
    kind: str, datastore_address: Callable[[str], str], cloud_tasks: Any
) -> None:
    """Each visit counts once, in one write a page, though some come twice and all tasks do."""
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said = count_visits.play(clients, cloud_tasks)

    assert f"count_visits\n{said}\n```\n" in text_of("docs/howto/gather-writes.md")


def test_the_readme_shows_what_make_run_prints() -> None:
    """The services, states and notes of the quick start are those of the code that prints them."""
    stack = text_of("devserver/service_table.py") + text_of("devserver/__main__.py")
    quick_start = text_of("README.md").partition("## Quick start")[2].partition("\n## ")[0]
    shown = re.findall(r"^  ✓ (App|Console|[A-Z][\w ]+?|memcached)  ", quick_start, re.MULTILINE)
    services = re.findall(r'ServiceState\(\s*"([\w ]+)"', stack)
    assert set(services) <= set(shown)
    for words in ("kept here, delivered to nobody", "from cron.yaml", "in memory", "kept in .dev/"):
        assert words in stack
        assert words in quick_start


# What is deployed


def test_no_query_of_the_models_needs_a_composite_index() -> None:
    """index.yaml is empty rightly: each query is a range of keys, an equality, or one order."""
    settings = Settings.from_environment(LOCAL_ENVIRONMENT)
    with main.open_clients(settings).context():
        checked = [query for module in model_modules() for query in queries_of(module)]
        checked.append(EntitySource(raise_prices.Book)._query(Span("", "")))
        checked.append(EntitySource(raise_prices.Book, named="b:")._query(Span("b:1", "b:2")))
        needy = [query for query in checked if needs_composite_index(query)]
        fussy = raise_prices.Book.query(raise_prices.Book._key > ndb.Key("Book", "a"))
        fussy = fussy.order(ndb.query.PropertyOrder("cents"))

    assert len(checked) >= 6
    assert not needy
    assert needs_composite_index(fussy)
    assert yaml.safe_load(text_of("index.yaml")) == {"indexes": []}


def model_modules() -> list[Any]:
    names = sorted(path.stem for path in (ROOT / "models").glob("*.py"))
    return [importlib.import_module(f"models.{name}") for name in names if name != "__init__"]


def queries_of(module: Any) -> Iterator[Any]:
    """Yield what the functions return that say "Return the query ..."."""
    for function in vars(module).values():
        if (getattr(function, "__doc__", None) or "").startswith("Return the query"):
            parameters = inspect.signature(function).parameters.values()
            now = datetime.datetime(2030, 5, 1)  # noqa: DTZ001
            samples: dict[str, Any] = {"datetime.datetime": now, "int": 1, "str": "x"}
            samples["Any"] = ndb.Key("ViewRow", "x")
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
    assert (parsed.worker_class, parsed.workers, parsed.threads) == (None, 1, 32)
    assert (parsed.timeout, parsed.forwarded_allow_ips) == (0, "*")
    assert parsed.control_socket_disable is True
    assert not parsed.preload_app


def test_the_app_needs_nothing_that_is_left_at_home() -> None:
    """What main imports is copied into the image and not ignored on the way to App Engine."""
    program = "import sys, main; print(*{name.partition('.')[0] for name in sys.modules})"
    imported = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {name for name in imported if (ROOT / name).is_dir() and name != "docs"} | {
        "main.py",
        "gunicorn.conf.py",  # gunicorn reads it where it starts, and the worker that it names.
        "serving.py",
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
    assert {"devserver", "tests", ".dev", ".env.*", "app.deploy.yaml", "none"} <= ignored


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
