"""The files that strangers and machines read first: workflows, editor, dev container, templates."""

from __future__ import annotations

import json
import re
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollforward.local.services.sdk import DATASTORE, FIRESTORE
from tests.infra.documents import ROOT, text_of

pytestmark = pytest.mark.fast

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize(
    ("name", "commands"),
    [("check", ["sudo .ci/machine", ".ci/run"]), ("audit", [".ci/audit"])],
)
def test_a_workflow_runs_what_a_person_can_run(name: str, commands: list[str]) -> None:
    """The checks are in .ci/, which every host calls alike."""
    steps = steps_of(ROOT / f".github/workflows/{name}.yml")

    assert [step["run"] for step in steps if "run" in step] == commands
    for command in commands:
        assert (ROOT / command.split()[-1]).stat().st_mode & 0o111


def test_a_night_of_chaos_is_the_command_that_a_person_runs() -> None:
    """On both emulators, for an hour, by another seed each night."""
    steps = steps_of(ROOT / ".github/workflows/chaos.yml")

    assert [step["run"] for step in steps if "run" in step] == [
        "sudo .ci/machine",
        'make chaos SECONDS=3600 SEED="$(date +%j)" ARGS="--emulator ${{ matrix.emulator }}"',
    ]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_trusts_no_tag_that_moves(workflow: Path) -> None:
    """Actions are pinned by commit with their full version beside it, and may only read."""
    text = workflow.read_text(encoding="utf-8")
    uses = re.findall(r"uses: (.+)$", text, flags=re.MULTILINE)

    assert uses
    for action in uses:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")


def test_the_machine_gets_what_the_doctor_asks_for() -> None:
    """By the names of the packages that `make doctor` would print."""
    script = text_of(".ci/machine")
    read = subprocess.run(["bash", "-n", str(ROOT / ".ci/machine")], capture_output=True, text=True)

    assert (read.returncode, read.stderr) == (0, "")
    for package in (
        "default-jre-headless",
        "memcached",
        *(
            f"google-cloud-cli-{kind.component.removeprefix('cloud-')}"
            for kind in (DATASTORE, FIRESTORE)
        ),
    ):
        assert re.search(rf"^  {package}(?: \\)?$", script, flags=re.MULTILINE), package


def test_the_dev_container_is_built_from_the_same_script() -> None:
    """Its context holds what its Dockerfile copies, and its ports are those of `make run`."""
    container = json.loads(text_of(".devcontainer/devcontainer.json"))
    dockerfile = text_of(".devcontainer/Dockerfile")
    context = ROOT / ".devcontainer" / container["build"]["context"]
    copied = re.findall(r"^COPY (\S+) ", dockerfile, flags=re.MULTILINE)

    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).is_file()
    assert copied == ["machine"]
    assert (context / "machine").resolve() == ROOT / ".ci/machine"
    assert container["forwardPorts"] == [8080, 8000]
    targets = re.findall(r"make (\w+)", container["postCreateCommand"])
    assert targets == ["setup", "doctor"]
    assert f"USER {container['remoteUser']}\n" in dockerfile


def test_editors_are_told_what_the_formatter_does() -> None:
    """One line length, and one indent."""
    parser = ConfigParser()
    parser.read_string("[top]\n" + text_of(".editorconfig"))

    assert parser["top"]["root"] == "true"
    assert parser["*"]["end_of_line"] == "lf"
    assert f"line-length = {parser['*.py']['max_line_length']}\n" in text_of("pyproject.toml")
    assert parser["Makefile"]["indent_style"] == "tab"


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def test_every_file_is_as_editorconfig_says() -> None:
    """It ends with a line feed, and has no carriage return."""
    texts = {path: path.read_bytes() for path in tracked() if path.suffix not in (".png", ".svg")}
    texts = {path: text for path, text in texts.items() if b"\0" not in text}

    assert len(texts) > 500
    assert [path.name for path, text in texts.items() if text and not text.endswith(b"\n")] == []
    assert [path.name for path, text in texts.items() if b"\r\n" in text] == []


def test_security_says_where_to_report_and_each_promise_has_its_proof() -> None:
    """Its numbers are those of the invariants."""
    text = text_of("SECURITY.md")
    promises = text.partition("## Promises\n")[2].partition("\n## ")[0]
    numbers = {int(number) for number in re.findall(r"S(\d+)", promises)}
    invariants = {int(n) for n in re.findall(r"^\| S(\d+) \|", text_of("docs/invariants.md"), re.M)}

    assert "security advisories" in text
    assert not re.search(r"[\w.]+@[\w.]+", text)
    assert len(numbers) > 10
    assert numbers <= invariants


@pytest.mark.parametrize(
    "name", [".github/pull_request_template.md", ".github/ISSUE_TEMPLATE/bug.md"]
)
def test_a_template_is_short(name: str) -> None:
    """Who has found a bug has better things to do than to fill in a form."""
    assert len(text_of(name).splitlines()) <= 20
