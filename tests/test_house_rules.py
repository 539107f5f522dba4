"""The rules of the house that no linter knows: doors, lengths, and where tests may look."""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.infra.documents import ROOT, named, sources, text_of
from tests.infra.mutation.planted import PACKAGES
from tests.infra.mutation.planted import named as planted_in
from tests.infra.prose import (
    GOALS,
    Measures,
    measures_of,
    packages,
    pages,
    tell_tales_of_page,
)

pytestmark = pytest.mark.fast

MAX_NAMES = 12
MAX_LINES = 450
MAX_METHODS = 20
MAX_MODULES = 14
NO_DOORS = (
    "cloud_profile",
    "gunicorn",
    "local",
    "look",
)  # Rooms whose modules are entered one by one.
DOORS = [
    path
    for path in sorted((ROOT / "rollforward").glob("*/__init__.py"))
    if path.parent.name not in NO_DOORS
]
CODE = sources("handlers", "pipelines", "models", "rollforward", "benchmarks")


@pytest.mark.parametrize("door", DOORS, ids=named)
def test_a_door_has_at_most_twelve_names_in_order_and_says_what_is_behind(door: Path) -> None:
    """A reader learns a pattern from one file; what it names is there."""
    module = importlib.import_module(f"rollforward.{door.parent.name}")

    assert 0 < len(module.__all__) <= MAX_NAMES
    assert list(module.__all__) == sorted(set(module.__all__), key=_as_ruff_sorts)
    assert all(hasattr(module, name) for name in module.__all__)
    assert len((module.__doc__ or "").splitlines()) >= 3


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """CONSTANTS first, then Classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_no_file_is_longer_than_a_person_reads_at_a_time() -> None:
    """Tests included."""
    lines = {named(path): path.read_text().count("\n") for path in [*CODE, *sources("tests")]}

    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_no_folder_has_more_modules_than_a_person_finds_a_way_through() -> None:
    """A module is a Python file other than `__init__` and `__main__`, tests included."""
    modules = Counter(
        named(path.parent)
        for path in [*CODE, *sources("tests")]
        if path.name not in ("__init__.py", "__main__.py")
    )

    assert {name: count for name, count in modules.items() if count > MAX_MODULES} == {}


def test_no_entity_of_a_test_has_the_kind_of_the_app_s_or_the_library_s() -> None:
    """ndb keeps one class for a kind: the test's would be read in place of the other."""
    kinds = _entities(sources("handlers", "pipelines", "models", "rollforward"))

    assert len(kinds) > 30
    assert kinds & _entities(sources("tests")) == set()


def _entities(paths: list[Path]) -> set[str]:
    """Return the names of the classes of some files that derive from `ndb.Model`."""
    return {
        node.name
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        if any(ast.unparse(base) == "ndb.Model" for base in node.bases)
    }


def test_no_class_has_more_methods_than_a_person_remembers() -> None:
    """One that does is two classes."""
    found = {
        f"{named(path)}: {node.name}": sum(isinstance(part, ast.FunctionDef) for part in node.body)
        for path in CODE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }

    assert len(found) > 200
    assert {name: count for name, count in found.items() if count > MAX_METHODS} == {}


@pytest.mark.parametrize(
    "modules",
    [
        "rollforward/*.py",
        *(f"rollforward/{door.parent.name}/**/*.py" for door in DOORS),
        "rollforward/local/cloudtasks/**/*.py",
    ],
)
def test_bugs_are_planted_in_every_module(modules: str) -> None:
    """`make mutants` covers a new module, too; models are left out."""
    covered = {path for package in PACKAGES.values() for path in planted_in(ROOT, package.modules)}

    assert set(planted_in(ROOT, [modules])) - covered == set()


@pytest.mark.parametrize("name", PACKAGES)
def test_what_a_planted_bug_runs_is_there(name: str) -> None:
    """A file of tests that was renamed would be left out without a word."""
    package = PACKAGES[name]

    assert [
        path for path in [*package.modules, *package.tests] if not planted_in(ROOT, [path])
    ] == []


PACKAGES_OF_PROSE = packages(ROOT)
PAGES_OF_PROSE = pages(ROOT)
# Packages above the goals; any other one has the goals as its ceilings.
CEILINGS = {
    package: Measures(**ceilings)
    for package, ceilings in tomllib.loads(text_of("tests/prose.toml")).items()
}
SLACK = 3


@pytest.mark.parametrize("package", PACKAGES_OF_PROSE)
def test_the_prose_of_a_package_is_within_its_ceilings(package: str) -> None:
    """They only fall: a package that is well below its own writes lower ones, or none."""
    texts = [path.read_text(encoding="utf-8") for path in PACKAGES_OF_PROSE[package]]
    measures = asdict(measures_of(texts))
    limits = asdict(CEILINGS.get(package, GOALS))
    lowest = measures_of(texts).ceilings(GOALS)
    lines = [f'["{package}"]', *(f"{name} = {value}" for name, value in asdict(lowest).items())]
    form = "no entry for it" if lowest == GOALS else "\n".join(lines)

    assert {name: value for name, value in measures.items() if value > limits[name]} == {}
    assert all(limits[name] - value <= SLACK for name, value in asdict(lowest).items()), (
        f"{package} has become better: let tests/prose.toml have\n{form}"
    )


@pytest.mark.parametrize("folder", PAGES_OF_PROSE)
def test_the_prose_of_the_documentation_is_within_the_goal(folder: str) -> None:
    """All pages of a folder together that are written by hand."""
    texts = [path.read_text(encoding="utf-8") for path in PAGES_OF_PROSE[folder]]
    assert tell_tales_of_page("\n".join(texts)) <= GOALS.tell_tales


def test_ceilings_are_those_of_packages() -> None:
    """A package that was renamed would leave its ceilings behind."""
    assert set(CEILINGS) <= set(PACKAGES_OF_PROSE)
    assert len(PACKAGES_OF_PROSE) > 15


def test_each_measure_of_prose_finds_what_it_counts() -> None:
    """One of each, and none in a docstring that begins with its thing."""
    bad = """
class Shelf:
    '''What is kept of a key, beside others.'''

    def wake(self, each):
        '''Have the readers woken, whoever they are.'''
"""
    good = """
class StateStore:
    '''The state of a key.'''

    def wake(self, reader):
        '''Wake the readers.'''
"""
    assert measures_of([bad]) == Measures(1, 1, 1_000 * 3 / 15, 1_000 * 1 / 2)
    assert measures_of([good]) == Measures(0, 0, 0, 0)
    assert tell_tales_of_page("A lane beside `what is` code.") == 1_000 / 5
