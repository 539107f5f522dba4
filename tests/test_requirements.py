"""Requirements: the library's ranges, and the pins that were tested within them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.infra.documents import ROOT, named, text_of

pytestmark = pytest.mark.fast

PROJECT = tomllib.loads(text_of("pyproject.toml"))["project"]
ALL_EXTRAS = PROJECT["optional-dependencies"]
# Beam is pinned and tested in an environment of its own.
EXTRAS = {extra: lines for extra, lines in ALL_EXTRAS.items() if extra != "beam"}
NPM = sorted(
    path
    for path in [*ROOT.glob("docs/*/package-lock.json"), *ROOT.glob("tests/**/package-lock.json")]
    if "node_modules" not in path.parts
)
# Of the demo app alone; pyproject.toml forbids the library to import them.
DEMO = {"email-validator", "markdown-it-py", "nh3"}


def ranges(*extras: str) -> dict[str, Requirement]:
    """Return what the library asks for, with some of its extras, by name."""
    asked = [*PROJECT["dependencies"], *(line for extra in extras for line in ALL_EXTRAS[extra])]
    parsed = [Requirement(line) for line in asked]
    return {canonicalize_name(one.name): one for one in parsed if one.name != PROJECT["name"]}


def pins(file: str) -> dict[str, list[Version]]:
    """Return the versions of each package in a lock file; markers may pick one of several."""
    versions: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([a-z0-9.-]+)==([^\s;]+)", text_of(file), re.M):
        versions.setdefault(canonicalize_name(name), []).append(Version(version))
    return versions


def chosen(file: str) -> set[str]:
    """Return the packages that an input of `make lock` names."""
    lines = [line for line in text_of(file).splitlines() if line and line[0] not in "#-"]
    return {canonicalize_name(line.strip()) for line in lines}


def outside(asked: dict[str, Requirement], file: str) -> Iterator[str]:
    """Yield each package whose pin is missing or out of its range."""
    pinned = pins(file)
    for name, requirement in asked.items():
        versions = pinned.get(name, [])
        if not versions or any(version not in requirement.specifier for version in versions):
            yield f"{requirement} but {file} has {pinned.get(name)}"


def test_the_pins_of_the_demo_app_are_within_the_ranges_of_the_library() -> None:
    """What is deployed is what a user of the library may get."""
    assert list(outside(ranges(), "requirements.txt")) == []
    assert list(outside(ranges(*EXTRAS), "requirements-dev.txt")) == []
    assert list(outside(ranges("beam"), "requirements-beam.txt")) == []


def test_the_demo_app_asks_for_what_the_library_needs_and_for_its_own() -> None:
    """Nothing of the library is pinned by accident only."""
    assert chosen("requirements.in") == {*ranges(), *DEMO}
    assert set(ranges("local")) - set(ranges()) <= chosen("requirements-dev.in")


def test_each_lowest_version_is_the_one_that_is_tested() -> None:
    """A range begins with the release that `make lowest` installs."""
    lowest = pins("requirements-lowest.txt")
    begins = {
        name: [Version(bound.version) for bound in one.specifier if bound.operator == ">="]
        for name, one in ranges(*EXTRAS).items()
    }

    assert {name: lowest.get(name) for name in begins} == begins


def test_a_range_ends_before_a_release_that_may_break() -> None:
    """Packages that number their releases by their age have no such end."""
    endless = {
        name
        for name, one in ranges(*EXTRAS).items()
        if not any(bound.operator == "<" for bound in one.specifier)
    }

    assert endless == {"cryptography"}


@pytest.mark.parametrize("lock", NPM, ids=named)
def test_packages_of_npm_are_pinned_and_come_from_its_own_registry(lock: Path) -> None:
    """A lock names no mirror: what it does not say, npm takes from the registry of the machine."""
    packages = json.loads(lock.read_text())["packages"]
    asked = json.loads(lock.with_name("package.json").read_text())["dependencies"]

    assert packages.pop("")["dependencies"] == asked
    assert asked == {name: packages[f"node_modules/{name}"]["version"] for name in asked}
    for name, package in packages.items():
        url = package.get("resolved", "https://registry.npmjs.org/")
        assert url.startswith("https://registry.npmjs.org/"), name
        assert package["integrity"].startswith("sha512-"), name
