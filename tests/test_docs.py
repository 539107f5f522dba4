"""What the documents name exists, and what exists is named. Nothing here uses the network."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import main
from docs.reference import generate
from handlers.settings import DemoSettings
from pipelines.registry import APP
from rollforward.cli.deploy.gcloud import Deployment, commands
from rollforward.cli.deploy.needs import needs_of
from rollforward.cli.deploy.project_files import ProjectFiles
from tests.infra.documents import (
    DOCUMENTS,
    LOCAL_ENVIRONMENT,
    PACKAGES,
    ROOT,
    cells,
    named,
    quoted,
    sources,
    text_of,
)

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
    folders = "handlers|pipelines|models|rollforward|tests|benchmarks|docs|templates|static"
    text = document.read_text(encoding="utf-8")
    paths = set(
        re.findall(rf"(?<![\w./])(?:{folders})/[\w./-]+\.(?:py|md|html|css|json|js)\b", text)
    )
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
    decisions = sorted((ROOT / "docs/adr").glob("0*.md"))
    listed = re.findall(r"\]\(([\w.-]+)\)", text_of("docs/adr/README.md"))
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


# Of WSGI, as its headers; Flask-WTF's settings are an app's own.
OF_A_REQUEST = {"REQUEST_METHOD", "PATH_INFO"}


@functools.cache
def variables_read() -> frozenset[str]:
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
    return frozenset(
        name for name in found - OF_A_REQUEST if not name.startswith(("HTTP_", "WTF_"))
    )


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

    settings = DemoSettings.from_environment(env | {"SECRET_KEY": LOCAL_ENVIRONMENT["SECRET_KEY"]})

    assert settings.is_local
    assert not env["SECRET_KEY"]
    assert set(env) <= variables_read()


def test_app_yaml_sets_only_what_is_read_and_refuses_to_run_unset() -> None:
    """Deployed as it is, the app does not start; filled in, it does."""
    given = yaml.safe_load(text_of("app.yaml"))["env_variables"]
    platform = {"GAE_ENV": "standard", "GOOGLE_CLOUD_PROJECT": "some-project"}
    filled = {**given, "SECRET_KEY": LOCAL_ENVIRONMENT["SECRET_KEY"], "SMTP_HOST": "relay:587"}

    with pytest.raises(ValueError, match="is not set"):
        DemoSettings.from_environment({**platform, **given})

    assert set(given) <= variables_read()
    assert not DemoSettings.from_environment({**platform, **filled}).is_local


# Routes, queues, cron, targets


@pytest.fixture(scope="module")
def app() -> Any:
    settings = DemoSettings.from_environment(LOCAL_ENVIRONMENT)
    return main.create_app(settings, main.open_clients(settings))


def test_the_reference_is_what_the_code_has() -> None:
    """`make reference` was run: nothing is listed by hand that a machine can list."""
    pages = {name: text_of(f"docs/reference/{name}") for name in generate.pages()}
    assert pages == generate.pages(), "run `make reference`"


def test_operations_says_what_to_do_about_each_gauge() -> None:
    """Nobody is woken by a number that no page explains."""
    gauges = {name for row in cells("docs/reference/gauges.md")[1:] for name in quoted(row[0])}
    explained = {
        name for row in cells("docs/operations.md", "Gauges")[1:] for name in quoted(row[0])
    }
    assert explained == gauges


@pytest.mark.parametrize(("name", "lines"), [("README.md", 150), ("docs/architecture.md", 120)])
def test_what_is_read_first_is_short(name: str, lines: int) -> None:
    """Who wants to know more is led there."""
    assert len(text_of(name).splitlines()) <= lines


def test_queues_in_use_exist_and_queues_that_exist_are_used() -> None:
    """A task in a queue that is not deployed would never be created."""
    declared = {queue["name"] for queue in yaml.safe_load(text_of("queue.yaml"))["queue"]}
    used = {task.queue for task in APP.tasks.values()}
    assert declared == used


def test_the_queues_of_cloud_run_are_those_of_queue_yaml() -> None:
    """Made by hand, a queue has the rates that queue.yaml gives it."""
    words = deploy_commands().split()
    starts = [i for i, _ in enumerate(words) if words[i : i + 3] == ["tasks", "queues", "create"]]
    made = {words[i + 3]: words[i + 4 : i + 12] for i in starts}
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
    blocks = re.findall(r"```sh\n(.*?)```", text_of("docs/howto/deploy.md"), flags=re.DOTALL)
    return "\n".join(blocks).replace("\\\n", " ")


def test_every_cron_url_is_a_route_and_every_sweep_is_scheduled(app: Any) -> None:
    """The scheduler calls what exists, and whatever waits for it is called."""
    scheduled = {job["url"] for job in yaml.safe_load(text_of("cron.yaml"))["cron"]}
    assert scheduled == {f"/cron/{name}/sweep" for name in needs_of(APP).swept}
    assert "/cron/<pattern>/sweep" in {rule.rule for rule in app.url_map.iter_rules()}


def test_the_howto_has_the_queues_and_the_sweep_that_the_command_prints() -> None:
    """To the letter: a reader compares them with what the terminal shows."""
    files = ProjectFiles(ROOT)
    queues = {queue.name: queue for queue in files.queues()}
    place = Deployment(service="rollforward")
    lines = commands("cloud-run", needs_of(APP), queues, files, place)
    shown = [line for line in lines if "tasks queues create" in line or "scheduler jobs" in line]

    assert len(shown) == len(queues) + 1
    assert set(shown) <= set(text_of("docs/howto/deploy.md").splitlines())


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


# Invariants and findings


@functools.cache
def claims_in(path: Path) -> list[ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [function for function in functions if function.name.startswith("test_")]


def invariants_of(test: ast.FunctionDef) -> set[str]:
    """Return the invariants that a test says it proves, first thing in its docstring."""
    said = re.match(r"[A-Z]\d+(, [A-Z]\d+)*(?=:| )", ast.get_docstring(test) or "")
    return set(said.group().split(", ")) if said else set()


def proof(reference: str) -> ast.FunctionDef:
    """Return a test by its file and name."""
    path, _, name = reference.partition("::")
    tests = {test.name: test for test in claims_in(ROOT / path)}
    assert name in tests, reference
    return tests[name]


def test_every_invariant_names_tests_that_exist() -> None:
    """What is called proved is proved by a test that is there, and names no other invariant."""
    invariant = ""
    for row in cells("docs/invariants.md")[1:]:
        if row[-1] == "Proved by":
            continue
        invariant = row[0] or invariant
        for reference in quoted(row[-1]):
            said = invariants_of(proof(reference))
            assert not said or invariant in said, f"{reference} says that it proves {said}"


def test_an_invariant_has_an_id_of_its_own() -> None:
    """A test that names one would prove another pattern's, too."""
    sections: dict[str, set[str]] = {}
    for section in re.split(r"(?m)^## ", text_of("docs/invariants.md"))[1:]:
        for name in re.findall(r"(?m)^\| ([A-Z]\d+) \|", section):
            sections.setdefault(name, set()).add(section.partition("\n")[0])

    assert {name: places for name, places in sections.items() if len(places) > 1} == {}


def test_every_invariant_that_a_test_names_is_listed() -> None:
    """A test that proves an invariant of the data is not forgotten in the list."""
    listed = {row[0] for row in cells("docs/invariants.md")[1:]}
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    claimed = {name for path in files for test in claims_in(path) for name in invariants_of(test)}
    # S numbers hostile requests and M measurements: the list has the most telling ones only.
    of_data = {name for name in claimed if name[0] not in "SM"}
    assert of_data
    assert of_data <= listed


def test_every_finding_of_a_user_names_tests_that_exist() -> None:
    """All thirty, by number; a finding without a test is not closed."""
    findings = [row for row in cells("docs/first-hour.md") if row[0].isdigit()]

    assert [int(number) for number, *_ in findings] == list(range(1, 31))
    for *_, proofs in findings:
        assert [proof(reference).name for reference in quoted(proofs)] != []
