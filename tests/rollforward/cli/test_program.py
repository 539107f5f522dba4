"""The program: its help, its exit codes, and what is said without the local platform."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from rollforward.cli import main, parser
from rollforward.cli.command import local_module
from rollforward.cli.errors import CliError
from rollforward.cli.program import COMMANDS
from rollforward.local import doctor
from rollforward.local.doctor import Finding
from tests.infra.stack import ROOT

pytestmark = pytest.mark.fast


def test_each_command_has_a_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The list has a line for each; each says in a sentence what it does, and its options."""
    for command in COMMANDS:
        assert re.search(rf"^    {command.name}\s", parser().format_help(), re.MULTILINE)
        with pytest.raises(SystemExit) as ended:
            main([command.name, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert ended.value.code == 0
        assert command.description in text


def test_the_version_is_the_packages_or_a_clones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert re.fullmatch(r"rollforward(, from a clone| \d+\.\d+\.\d+)\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ""),
        (["fly"], ""),
        (["new"], " new"),
        (["run", "--fly"], " run"),
        (["tasks", "--fly"], " tasks"),
        (["dead", "replay", "--fly"], " dead replay"),
    ],
)
def test_wrong_arguments_end_with_2_and_the_usage(
    arguments: Sequence[str], parts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is that of the command, or of its verb."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"usage: rollforward{parts} [-h]")


@pytest.mark.parametrize(
    ("arguments", "range_"),
    [(["tasks", "--limit"], "1 to 50"), (["ping", "--timeout"], "1 to 600")],
)
@pytest.mark.parametrize("number", ["0", "601", "x"])
def test_a_number_out_of_its_range_is_told_the_range(
    arguments: Sequence[str], range_: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, number])

    assert ended.value.code == 2
    assert f"{arguments[1]}: must be {range_}, got '{number}'" in capsys.readouterr().err


def test_the_module_and_the_script_of_the_wheel_are_the_same_program() -> None:
    """The script's line in pyproject.toml names what the module calls."""
    command = [sys.executable, "-m", "rollforward", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout

    assert text.startswith("usage: rollforward [-h] [--version] COMMAND ...")
    assert 'rollforward = "rollforward.cli:main"\n' in (ROOT / "pyproject.toml").read_text()


WITHOUT_EXTRAS = """
import sys
for name in ("aiohttp", "aiosmtpd", "jinja2", "psutil", "watchfiles", "yaml"):
    sys.modules[name] = None
from rollforward.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["run", "shell", "doctor"])
def test_a_command_of_the_local_platform_says_how_to_install_it(
    command: str, tmp_path: Path
) -> None:
    """One sentence, not a traceback of a module that a stranger never heard of."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, command],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "pip install 'rollforward[local]'" in done.stderr


def test_a_target_that_is_not_there_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("APP_PORT", "CONSOLE_PORT"):
        monkeypatch.setenv(name, "0")

    assert main(["run", "nowhere:serve", "--memory"]) == 2
    assert "There is no module 'nowhere'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


DAMAGED = "cannot be used: file is not a database"


@pytest.mark.parametrize(("name", "error"), [("rollforward.gone", ImportError), (None, CliError)])
def test_a_module_of_the_library_that_is_not_there_is_no_missing_extra(
    monkeypatch: pytest.MonkeyPatch, name: str | None, error: type[Exception]
) -> None:
    """An install that is broken is not mended by an extra."""

    def import_module(_: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("importlib.import_module", import_module)

    with pytest.raises(error):
        local_module("settings")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (".dev", "File exists: '"),
        (".dev/tasks.sqlite", f"tasks.sqlite {DAMAGED}"),
        (".dev/mail.sqlite", f"mail.sqlite {DAMAGED}"),
    ],
)
def test_a_file_in_the_way_is_named_in_a_sentence(file: str, said: str, tmp_path: Path) -> None:
    """As a folder that is read-only, a full disk, or what a loss of power has left."""
    ports = {f"{name}_PORT": "0" for name in ("APP", "CONSOLE", "TASKS", "MEMCACHE", "MAIL")}
    (tmp_path / "main.py").write_text("serve = None\n")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("no folder and no database" * 100)

    done = subprocess.run(
        [sys.executable, "-m", "rollforward", "run"],
        env={**os.environ, **ports, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr.strip().count("\n")) == (1, 0)
    assert said in done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOTCONN])
def test_a_full_disk_is_said_in_a_sentence_and_other_errors_are_ours(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error of a write has no file."""

    def fail(**_: object) -> None:
        raise OSError(number, "the system's words")

    monkeypatch.setattr(doctor, "examine", fail)

    with pytest.raises(OSError, match="words") if number != errno.ENOSPC else nullcontext():
        assert main(["doctor", "--json"]) == 1
        assert capsys.readouterr().err == "rollforward doctor: [Errno 28] the system's words\n"


def test_help_loads_no_pattern_and_no_framework() -> None:
    """A prompt does not wait for Datastore's and Flask's modules."""
    code = (
        "import sys; from rollforward.cli import parser; parser().format_help(); "
        "print({name.partition('.')[0] for name in sys.modules} "
        "& {'flask', 'google', 'pydantic', 'aiohttp', 'yaml', 'psutil'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout == "set()\n"


@pytest.mark.parametrize(("is_there", "code"), [(True, 0), (None, 0), (False, 1)])
def test_doctors_json_says_what_is_missing_and_whether_a_run_needs_it(
    is_there: bool | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finding = Finding("Java", is_there, "state", "fix")
    monkeypatch.setattr(doctor, "examine", lambda: iter([finding]))

    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {
        "ready": code == 0,
        "findings": [{"name": "Java", "ok": is_there, "state": "state", "fix": "fix"}],
    }


def test_a_reader_that_stops_reading_is_no_failure() -> None:
    """As in `rollforward doctor --json | head -0`."""
    command = [sys.executable, "-m", "rollforward", "doctor", "--json"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(30) in (0, 1)
    process.stderr.close()
