"""Lines of the code that a test changes: a guard is taken out, and all else stays as it is."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollforward.flows.errors import FlowError, LeasedError, Suspended
from tests.infra.world import World

# A test that fails, or gets another answer of flows than it has asked for.
NOTICED = (AssertionError, pytest.fail.Exception, FlowError, LeasedError, Suspended)


@dataclass(frozen=True)
class Bug:
    """A function in which some text stands in the place of a guard, and who has to notice it.

    Attributes:
        owner: A module or a class.
        name: Of the function there.
        guard, instead: The guard's text, which the function has once, and what is planted.
        noticed_by: A test, which passes with the guard.
        options: What the test takes beside the world.
    """

    owner: Any
    name: str
    guard: str
    instead: str
    noticed_by: Callable[..., None]
    options: Mapping[str, object] = field(default_factory=dict)

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the function be as if it had been written so, whoever has imported it."""
        function = inspect.unwrap(vars(self.owner)[self.name])
        text = textwrap.dedent(inspect.getsource(function))
        assert text.count(self.guard) == 1, f"{self.name} has not, or twice: {self.guard}"
        planted = text.replace(self.guard, self.instead)
        code = compile(planted, function.__code__.co_filename, "exec")
        made: dict[str, Any] = {}
        exec(code, function.__globals__, made)
        monkeypatch.setattr(function, "__code__", inspect.unwrap(made[self.name]).__code__)

    def check_noticed(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Check that the test fails with the bug."""
        takes = inspect.signature(self.noticed_by).parameters
        known = {"monkeypatch": monkeypatch, **self.options}
        self.plant(monkeypatch)
        with pytest.raises(NOTICED):
            self.noticed_by(world, **{name: known[name] for name in takes if name in known})
