"""Routes whose functions that make addresses are compiled once for all the apps of a test run.

Each world has an app of its own. Werkzeug compiles two functions for each of its hundred routes
when it is added, although they depend on nothing but the words of the route.
"""

from __future__ import annotations

from typing import Any

from werkzeug.routing import Rule

_made: dict[Any, Any] = {}


class SharedRule(Rule):
    """A route like any other."""

    def _compile_builder(self, append_unknown: bool = True) -> Any:
        if self.defaults:
            return super()._compile_builder(append_unknown)
        words = (append_unknown, *self._trace)
        if words not in _made:
            _made[words] = super()._compile_builder(append_unknown)
        return _made[words]
