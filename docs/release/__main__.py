"""Prepare a release, up to but without the upload: `make release VERSION=0.2.0`.

The tree must be clean, the changelog must have entries, and no public name may have changed
without a word. Then the checks run, the version is stamped, and the distributions and the
documents are built. What remains to be done is printed; with `--tag` it is committed and tagged.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from docs.release.compatibility import (
    LIST,
    RELEASED,
    ROOT,
    breaks,
    last_release,
    numbers,
    unreleased,
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", help="as 0.2.0")
    parser.add_argument("--tag", action="store_true", help="commit, and tag the commit")
    parser.add_argument(
        "--checked", action="store_true", help="CI has passed for this commit: do not check again"
    )
    options = parser.parse_args(arguments)
    problems = obstacles(options.version, ROOT)
    if problems:
        parser.error("\n  ".join(["nothing was changed, because:", *problems]))
    try:
        if not options.checked:
            _make("check")
        stamp(options.version, ROOT, datetime.datetime.now(datetime.UTC).date())
        _make("dist")
        _make("docs", f"VERSION={_minor(options.version)}")
    except subprocess.CalledProcessError as error:
        take_back(options.version, ROOT)
        parser.exit(1, f"{' '.join(error.cmd)} failed: the tree is as it was\n")
    commands = [f"git commit -am 'Release {options.version}'", f"git tag v{options.version}"]
    if options.tag:
        _run("git", "add", "-A", RELEASED)
        _run("git", "commit", "-qam", f"Release {options.version}")
        _run("git", "tag", f"v{options.version}")
        commands = []
    else:
        commands.insert(0, f"git add {RELEASED}")
    print(f"\n{options.version} is in dist/, its documents are in site/. To publish it:\n")
    for command in [*commands, *UPLOAD.format(version=options.version).splitlines()]:
        print(f"  {command}")


UPLOAD = """git push --follow-tags origin main v{version}
python -m twine upload dist/*
rsync -a site/ DESTINATION   # the site of all versions, without --delete"""


def obstacles(version: str, root: Path) -> list[str]:
    """Return what stands in the way of a release."""
    problems = []
    last = last_release(root)
    if not re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", version):
        return [f"the version must be three numbers, as 0.2.0, got {version}"]
    if last and numbers(version) <= numbers(last.stem):
        problems.append(f"{version} is not after {last.stem}, the last release")
    command = ["git", "status", "--porcelain"]
    status = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    if status.stdout:
        problems.append(f"the tree has changes that are not committed:\n{status.stdout}")
    changelog = unreleased(_read(root / "CHANGELOG.md"))
    if not re.search(r"^- ", changelog, flags=re.MULTILINE):
        problems.append("CHANGELOG.md has no entry below Unreleased")
    if last:
        new = _read(root / LIST).splitlines()
        problems += breaks(_read(last).splitlines(), new, changelog)
    return problems


def stamp(version: str, root: Path, day: datetime.date) -> None:
    """Write the version and its day where they belong, and keep the list of its public names."""
    _replace(root / "pyproject.toml", r'^version = "[^"]+"$', f'version = "{version}"')
    heading = f"## Unreleased\n\n## {version} ({day.isoformat()})"
    _replace(root / "CHANGELOG.md", r"^## Unreleased$", heading)
    (root / RELEASED).mkdir(exist_ok=True)
    shutil.copyfile(root / LIST, root / RELEASED / f"{version}.txt")


def take_back(version: str, root: Path) -> None:
    """Undo a stamp, in a tree that had no changes before it."""
    command = ["git", "checkout", "-q", "--", "pyproject.toml", "CHANGELOG.md"]
    subprocess.run(command, cwd=root, check=True)
    (root / RELEASED / f"{version}.txt").unlink(missing_ok=True)


def _replace(path: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, _read(path), count=1, flags=re.MULTILINE)
    assert count == 1, f"{path} has no {pattern}"
    path.write_text(text, encoding="utf-8")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _minor(version: str) -> str:
    """Return the version of the documents: a patch release replaces those of its minor version."""
    return version.rpartition(".")[0]


def _make(*arguments: str) -> None:
    """Run a target without the options of this one, which make would hand down."""
    _run("make", *arguments, "ARGS=")


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
