"""Releases: no public name goes without a word, and nothing is stamped that is not ready."""

from __future__ import annotations

import datetime
import inspect
import subprocess
import warnings
from pathlib import Path

import pytest

from docs.reference import api
from docs.release import compatibility
from docs.release.__main__ import obstacles, stamp, take_back
from docs.release.compatibility import breaks, last_release, unreleased
from tests.infra.documents import text_of

pytestmark = pytest.mark.fast

OLD = """rollforward.tasks: class Task(path: str)
rollforward.tasks: def Task.send(when: int) -> None [deprecated]
rollforward.tasks: def Task.enqueue(args: A) -> bool
rollforward.tasks: def task(function: F) -> Task
rollforward.tasks: def task(path: str) -> Declare
rollforward.tasks: LIMIT = 5""".splitlines()


def without(name: str) -> list[str]:
    return [line for line in OLD if name not in line]


def test_no_public_name_went_since_the_last_release_without_a_word() -> None:
    """The list of the last release is kept; the first one has nothing to be compared with."""
    last = last_release()
    old = last.read_text(encoding="utf-8").splitlines() if last else api.lines()

    assert list(breaks(old, api.lines(), unreleased(text_of("CHANGELOG.md")))) == []


def test_the_same_names_and_more_break_nothing() -> None:
    """An overload has as many lines as signatures, in any order."""
    assert list(breaks(OLD, [*reversed(OLD), "rollforward.tasks: def new() -> None"], "")) == []


@pytest.mark.parametrize(
    ("new", "changelog", "message"),
    [
        (
            without("enqueue"),
            "### Removed\n\n- `Task.enqueue`\n",
            "rollforward.tasks: Task.enqueue went without a release in which it was deprecated",
        ),
        (
            without("send"),
            "### Changed\n\n- `Task.send`\n",
            "rollforward.tasks: Task.send went: CHANGELOG.md must name `Task.send` below Removed",
        ),
        (
            without("path: str) ->"),
            "### Removed\n\n- `task`\n",
            "rollforward.tasks: task has changed: CHANGELOG.md must name `task` below Changed",
        ),
        (
            [line.replace("= 5", "= 6") for line in OLD],
            "### Changed\n\n- the LIMIT\n",
            "rollforward.tasks: LIMIT has changed: CHANGELOG.md must name `LIMIT` below Changed",
        ),
    ],
)
def test_a_name_that_goes_or_changes_is_found(new: list[str], changelog: str, message: str) -> None:
    """Named in the wrong section it is not named."""
    assert list(breaks(OLD, new, changelog)) == [message]


def test_what_was_deprecated_may_go_and_what_is_named_may_change() -> None:
    """The changelog writes it alone, with its package, or as a call."""
    changelog = """
### Removed

- `Task.send`: write `Task.enqueue`

### Changed

- `rollforward.tasks.LIMIT` is 6, and `task(path)` takes a path only.
"""
    new = [line.replace("= 5", "= 6") for line in without("send") if "function: F" not in line]

    assert list(breaks(OLD, new, changelog)) == []


def test_a_deprecation_is_no_change() -> None:
    """The mark alone breaks nobody."""
    new = [f"{line} [deprecated]" if "Task.enqueue" in line else line for line in OLD]

    assert list(breaks(OLD, new, "")) == []


def greet(name: str) -> str:
    """Greet a person.

    Deprecated since 0.2: write `Hello(name)`.
    """
    warnings.warn("greet goes in 0.3: write Hello(name)", DeprecationWarning, stacklevel=2)
    return name


def test_a_deprecated_name_is_marked_in_the_list_and_warns() -> None:
    """As docs/releasing.md says how to do it."""
    doc = inspect.cleandoc(greet.__doc__ or "")
    entry = api.Entry("greet", greet, "function", ["def greet(name: str) -> str"], doc)

    assert api.lines_of("m", entry) == ["m: def greet(name: str) -> str [deprecated]"]
    with pytest.warns(DeprecationWarning, match=r"write Hello\(name\)"):
        greet("x")


def test_every_name_that_is_marked_as_deprecated_warns() -> None:
    """A docstring alone reaches nobody."""
    silent = [
        entry.name
        for module in ["rollforward", *(f"rollforward.{name}" for name in api.packages())]
        for shown in api.entries(module)
        for entry in [shown, *shown.members]
        if api.is_deprecated(entry) and "DeprecationWarning" not in inspect.getsource(entry.value)
    ]

    assert silent == []


# Making one

CHANGELOG = """# Changelog

## Unreleased

### Added

- A greeting

## 0.9.0 (2030-01-01)

- Something old
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one release, and a name more since then."""
    files = {
        "CHANGELOG.md": CHANGELOG,
        "pyproject.toml": '[project]\nname = "rollforward"\nversion = "0.9.0"\n',
        compatibility.LIST: "\n".join([*OLD, "rollforward.tasks: def new() -> None"]) + "\n",
        f"{compatibility.RELEASED}/0.9.0.txt": "\n".join(OLD) + "\n",
        f"{compatibility.RELEASED}/0.8.2.txt": "rollforward.tasks: def gone() -> None\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    git(tmp_path, *identity, "commit", "-qm", "Begin")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def test_a_release_that_is_ready_meets_no_obstacle(repository: Path) -> None:
    """0.10 comes after 0.9, and is compared with it, not with 0.8."""
    assert obstacles("0.10.0", repository) == []


@pytest.mark.parametrize("version", ["0.9.0", "0.8.10", "1", "1.0", "01.0.0", "1.0.0rc1", "none"])
def test_a_version_that_does_not_come_next_is_refused(repository: Path, version: str) -> None:
    """Nothing is guessed."""
    [problem] = obstacles(version, repository)

    assert version in problem


def test_changes_that_are_not_committed_stop_a_release(repository: Path) -> None:
    """What is built is what is tagged."""
    (repository / "stray.py").write_text("x = 1\n", encoding="utf-8")

    [problem] = obstacles("1.0.0", repository)

    assert "stray.py" in problem


def test_a_changelog_without_entries_and_a_lost_name_stop_a_release(repository: Path) -> None:
    """All that is missing is said at once."""
    text = CHANGELOG.replace("- A greeting\n", "")
    (repository / "CHANGELOG.md").write_text(text, encoding="utf-8")
    (repository / compatibility.LIST).write_text("\n".join(without("LIMIT")), encoding="utf-8")
    git(repository, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qam", "Less")

    problems = obstacles("1.0.0", repository)

    assert ["no entry" in problems[0], "LIMIT went" in problems[1]] == [True, True]
    assert len(problems) == 2


def test_a_release_is_stamped_with_its_day_and_its_names(repository: Path) -> None:
    """The next entries have their place above it."""
    stamp("1.0.0", repository, datetime.date(2030, 5, 1))

    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## Unreleased\n\n## 1.0.0 (2030-05-01)\n\n### Added" in changelog
    assert unreleased(changelog).strip() == ""
    assert 'version = "1.0.0"\n' in (repository / "pyproject.toml").read_text(encoding="utf-8")
    last = last_release(repository)
    assert last
    assert last.name == "1.0.0.txt"
    assert "def new() -> None" in last.read_text(encoding="utf-8")


def test_a_stamp_is_taken_back_when_a_build_fails(repository: Path) -> None:
    """The next try finds the tree as the first one did."""
    stamp("1.0.0", repository, datetime.date(2030, 5, 1))

    take_back("1.0.0", repository)

    assert obstacles("1.0.0", repository) == []
