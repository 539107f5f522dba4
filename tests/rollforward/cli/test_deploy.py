"""`rollforward deploy --check`, in a folder with an app."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollforward.cli import main
from rollforward.cli.deploy.loading import registry_of
from rollforward.cli.errors import CliError, WrongUsageError
from tests.infra.stack import ROOT

APP = """
from flask import Flask
import rollforward as rf

print("importing")

@rf.task(queue="mails")
def mail(address: str) -> None: ...

app = Flask(__name__)
"""
DECLARED = APP + "serve = rf.serve(app, mail)\n"
TARGETS = {
    "app": (DECLARED, "serve"),
    "function": (APP + "def serve(): return rf.serve(app, mail)\n", "serve"),
    "registry": (APP + "PARTS = rf.Registry(mail)\n", "PARTS"),
    "function beside a registry": (
        APP + "PARTS = rf.Registry(mail)\nOTHER = PARTS\ndef serve(): raise ValueError\n",
        "serve",
    ),
}


def check(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run the command as a process: what it imports stays out of this one."""
    done = subprocess.run(
        [sys.executable, "-m", "rollforward", "deploy", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def result(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the command with --json."""
    code, output, _ = check(folder, "--check", "--json", *arguments)
    answer: dict[str, Any] = json.loads(output)
    assert code == (0 if answer["ok"] else 1)
    return answer


@pytest.mark.parametrize("name", TARGETS)
def test_the_tasks_of_a_target_are_found_without_a_service(tmp_path: Path, name: str) -> None:
    """Neither an emulator nor a setting is there; what the app prints is kept out of the result."""
    code, target = TARGETS[name]
    (tmp_path / "shop.py").write_text(code)

    answer = result(tmp_path, f"shop:{target}")

    assert answer["target"] == f"shop:{target}"
    assert [finding["id"] for finding in answer["findings"]] == [
        *("queue-file-missing", "cron-file-missing")
    ]
    assert "default, mails, outbox" in answer["findings"][0]["text"]


def test_what_write_has_written_passes_the_next_check(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(DECLARED)
    written = result(tmp_path, "--write")
    again = result(tmp_path, "--write")

    assert written["ok"]
    assert written["written"] == ["Wrote queue.yaml.", "Wrote cron.yaml."]
    assert again["written"] == []
    assert again["target"] == "app:serve"
    assert list(again["commands"]) == ["cloud-run"]
    assert "name: mails" in (tmp_path / "queue.yaml").read_text()


def test_people_read_the_findings_and_then_the_commands(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(DECLARED)
    (tmp_path / "app.yaml").write_text("entrypoint: gunicorn\n")

    code, output, _ = check(tmp_path, "--check", "--project", "p1", "--region", "r1")

    assert code == 1
    assert "  ✕ There is no queue.yaml" in output
    assert "--write adds what is missing" in output
    assert "\n# app-engine\n" in output
    assert "# cloud-run" not in output
    assert "gcloud app deploy --project=p1" in output


def test_the_new_app_passes(tmp_path: Path) -> None:
    """`rollforward new` writes its files by the code of --write."""
    subprocess.run(
        [sys.executable, "-m", "rollforward", "new", "shop"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=True,
        capture_output=True,
    )
    answer = result(tmp_path / "shop", "--write")

    assert (answer["findings"], answer["written"]) == ([], [])
    assert list(answer["commands"]) == ["app-engine", "cloud-run"]


def test_the_demo_app_passes() -> None:
    """Its clients are not opened: the module has one registry."""
    assert result(ROOT)["findings"] == []


@pytest.mark.fast
@pytest.mark.parametrize(
    "arguments", [["deploy"], ["deploy", "--check", "--live"], ["deploy", "--check", "x"]]
)
def test_arguments_without_a_sense_end_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.fast
@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        ("serve = 5\n", WrongUsageError, "is no app on Rollforward"),
        ("x = 5\n", WrongUsageError, "is no app on Rollforward"),
        ("def serve(environ, start_response): ...\n", WrongUsageError, "goes around its wsgi_app"),
        ("def serve(): raise KeyError('SMTP_HOST')\n", CliError, "KeyError: 'SMTP_HOST'.*REGISTRY"),
        ("import nothing_like_it\n", CliError, "ModuleNotFoundError"),
        ("raise SystemExit(3)\n", CliError, "SystemExit: 3"),
    ],
)
def test_a_target_that_is_no_app_says_what_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    error: type[CliError],
    text: str,
) -> None:
    name = f"target_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path])

    with pytest.raises(error, match=text):
        registry_of(f"{name}:serve", tmp_path)
