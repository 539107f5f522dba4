"""The front door of the library: its names, and what importing it loads."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import rollforward as rf
from tests.infra.documents import ROOT, named, sources

pytestmark = pytest.mark.fast

MAX_NAMES = 20
DOOR = ROOT / "rollforward/__init__.py"
PACKAGES = {path.parent.name for path in (ROOT / "rollforward").glob("*/__init__.py")}
HEAVY = ("flask", "google", "grpc", "gunicorn", "pydantic", "werkzeug")
# No app imports one of these.
NOT_OFFERED = {"cli", "cloud_profile", "gunicorn", "local", "look", "testing", "tracing"}


def test_it_has_at_most_twenty_names_and_none_of_them_hides_a_package() -> None:
    """A first app needs no more; `rf.fork_join` is always the package."""
    assert len(rf.__all__) == len(set(rf.__all__)) <= MAX_NAMES
    assert set(rf.__all__).isdisjoint(PACKAGES)


@pytest.mark.parametrize("name", rf.__all__)
def test_a_name_is_the_one_of_its_packages_door(name: str) -> None:
    """It resolves, and both ways of import give the same object."""
    assert getattr(rf, name) is getattr(sys.modules[f"rollforward.{rf._HOMES[name]}"], name)


def test_it_leads_to_each_package_that_an_app_may_import() -> None:
    """`rf.streams.StreamTest` needs no second import."""
    program = f"""
import rollforward as rf
for name in {sorted(PACKAGES - NOT_OFFERED | {"registry"})}:
    assert getattr(rf, name).__name__ == "rollforward." + name
    assert name in dir(rf)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_importing_it_loads_no_service_and_no_flask() -> None:
    """A script that uses one pattern pays for that pattern alone."""
    program = "import rollforward, sys; print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = shown.stdout.split()

    assert [name for name in modules if name.partition(".")[0] in HEAVY] == []
    assert {name for name in modules if name.startswith("rollforward")} == {
        "rollforward",
        "rollforward.lazy_imports",
    }


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As of any module: `hasattr` and `from rollforward import` ask in this way."""
    with pytest.raises(AttributeError, match=r"^module 'rollforward' has no attribute 'defer'$"):
        rf.defer  # type: ignore[attr-defined]  # noqa: B018


def test_mypy_and_python_are_offered_the_same() -> None:
    """Its imports for type checkers agree with the table that the first use reads."""
    typed = {
        alias.name: node.module.removeprefix("rollforward").removeprefix(".")
        for statement in ast.parse(DOOR.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.Name)
        for node in statement.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    assert {name: home for name, home in typed.items() if home} == rf._HOMES
    assert {name for name, home in typed.items() if not home} == rf._PACKAGES


def test_no_module_of_the_library_enters_by_it() -> None:
    """A package that did would import, by way of the door, packages above its own."""
    paths = sources("rollforward")
    entering = {
        f"{named(path)}: {alias.name}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (alias.name in rf.__all__ and getattr(node, "module", "") == "rollforward")
        or (alias.name == "rollforward" and isinstance(node, ast.Import))
    }

    assert len(paths) > 400
    assert entering == set()
