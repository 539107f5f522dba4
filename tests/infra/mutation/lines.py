"""Lines of the code that a test changes: a guard is taken out, and all else stays as it is."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import pytest

from tests.infra.memory_datastore import Memory

NOTICED = (AssertionError, pytest.fail.Exception)


@dataclass(frozen=True)
class Bug:
    """A function in which some text stands in the place of a guard, and who has to notice it.

    Attributes:
        owner: A module or a class.
        name: Of the function there, or of a property.
        guard, instead: The guard's text, which the function has once, and what is planted.
        noticed_by: A test, which passes with the guard.
        options: What the test takes beside its fixtures.
        errors: As which the bug shows in the test, beside a failed assertion.
    """

    owner: Any
    name: str
    guard: str
    instead: str
    noticed_by: Callable[..., None]
    options: Mapping[str, object] = field(default_factory=dict)
    errors: tuple[type[BaseException], ...] = ()

    @property
    def id(self) -> str:
        """Its name as a parameter of a test."""
        return f"{self.name}: {' '.join(self.guard.split())}"[:60]

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the function be as if it had been written so, whoever has imported it."""
        function = _plain(vars(self.owner)[self.name])
        text = textwrap.dedent(inspect.getsource(function))
        assert self.guard != self.instead
        assert text.count(self.guard) == 1, f"{self.name} has not, or twice: {self.guard}"
        planted = text.replace(self.guard, self.instead)
        code = compile(planted, function.__code__.co_filename, "exec")
        made: dict[str, Any] = {}
        exec(code, function.__globals__, made)
        monkeypatch.setattr(function, "__code__", _plain(made[self.name]).__code__)

    def check_noticed(self, monkeypatch: pytest.MonkeyPatch, **fixtures: object) -> None:
        """Check that the test passes without the bug, and fails with it.

        Without it, the test runs twice, each time in the memory as it is, lest it fail with the bug
        by what a run leaves behind. A test with fixtures does not run without it, for its stores
        are slow and keep what it wrote: its options have to be among those that pytest runs.

        Args:
            fixtures: What the test may take, by name.

        Raises:
            Exception: the test's own, if it is neither a failure nor one of `errors`.
        """
        if fixtures:
            self._check_options()
        else:
            memory = getattr(Memory, "current", Memory())
            facts = memory.facts
            for _ in range(2):
                with pytest.MonkeyPatch.context() as other:
                    memory.facts = dict(facts)
                    self._run(monkeypatch=other)
            memory.facts = facts
        self.plant(monkeypatch)
        try:
            self._run(monkeypatch=monkeypatch, **fixtures)
        except (*NOTICED, *self.errors):
            return
        pytest.fail(f"{self.noticed_by.__name__} does not notice it")

    def _run(self, **fixtures: object) -> None:
        known = {**fixtures, **self.options}
        takes = inspect.signature(self.noticed_by).parameters
        given = [name for name, one in takes.items() if name in known or one.default is one.empty]
        self.noticed_by(**{name: known[name] for name in given})

    def _check_options(self) -> None:
        marks = getattr(self.noticed_by, "pytestmark", [])
        for names, rows in (mark.args for mark in marks if mark.name == "parametrize"):
            split = names.replace(",", " ").split() if isinstance(names, str) else list(names)
            if not self.options.keys() & split:
                continue
            given = [self.options[name] for name in split]
            is_run = given in [_values(row, len(split)) for row in rows]
            assert is_run, f"pytest does not run {self.noticed_by.__name__} with {given}"


def _values(row: Any, count: int) -> list[object]:
    """Return the values of one row of `pytest.mark.parametrize`."""
    is_marked = isinstance(row, type(pytest.param()))
    return list(row.values) if is_marked else [row] if count == 1 else list(row)


def _plain(function: Any) -> FunctionType:
    """Return the function in a property, a class method or a decorated one."""
    inner = function.fget if isinstance(function, property) else function
    plain = inspect.unwrap(getattr(inner, "__func__", inner))
    assert isinstance(plain, FunctionType)
    return plain
