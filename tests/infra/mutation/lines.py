"""Lines of the code that a test changes: a guard is taken out, and all else stays as it is."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import pytest

# A test that ends so has noticed nothing: what was planted is no code, or the test did not run.
NOT_NOTICED = (NameError, SyntaxError, ImportError, pytest.skip.Exception, KeyboardInterrupt)


@dataclass(frozen=True)
class Bug:
    """A function in which some text stands in the place of a guard, and who has to notice it.

    Attributes:
        owner: A module or a class.
        name: Of the function there, or of a property.
        guard, instead: The guard's text, which the function has once, and what is planted.
        noticed_by: A test, which passes with the guard.
        options: What the test takes beside its fixtures.
    """

    owner: Any
    name: str
    guard: str
    instead: str
    noticed_by: Callable[..., None]
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Its name as a parameter of a test."""
        return f"{self.name}: {' '.join(self.guard.split())}"[:60]

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the function be as if it had been written so, whoever has imported it."""
        function = _plain(vars(self.owner)[self.name])
        text = textwrap.dedent(inspect.getsource(function))
        assert text.count(self.guard) == 1, f"{self.name} has not, or twice: {self.guard}"
        planted = text.replace(self.guard, self.instead)
        code = compile(planted, function.__code__.co_filename, "exec")
        made: dict[str, Any] = {}
        exec(code, function.__globals__, made)
        monkeypatch.setattr(function, "__code__", _plain(made[self.name]).__code__)

    def check_noticed(self, monkeypatch: pytest.MonkeyPatch, **fixtures: object) -> None:
        """Check that the test fails with the bug.

        Args:
            fixtures: What the test may take, by name.
        """
        known = {"monkeypatch": monkeypatch, **fixtures, **self.options}
        takes = inspect.signature(self.noticed_by).parameters
        given = [name for name, one in takes.items() if name in known or one.default is one.empty]
        arguments = {name: known[name] for name in given}
        self.plant(monkeypatch)
        try:
            self.noticed_by(**arguments)
        except NOT_NOTICED:
            raise
        except BaseException:  # As of a flow's end, or of `pytest.fail`.
            return
        pytest.fail(f"{self.noticed_by.__name__} does not notice it")


def _plain(function: Any) -> FunctionType:
    """Return the function in a property, a class method or a decorated one."""
    inner = function.fget if isinstance(function, property) else function
    plain = inspect.unwrap(getattr(inner, "__func__", inner))
    assert isinstance(plain, FunctionType)
    return plain
