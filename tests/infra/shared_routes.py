"""Routes that are read, and whose functions are compiled, once for all the apps of a test run.

Each world has an app of its own. Werkzeug reads each of its hundred routes when it is added, and
compiles two functions for it, although all that depends on nothing but the words of the route.
"""

from __future__ import annotations

from typing import Any

from werkzeug.routing import Rule

_made: dict[Any, Any] = {}
_read: dict[str, Any] = {}


class SharedRule(Rule):
    """A route like any other."""

    def _parse_rule(self, rule: str) -> Any:
        """Return the parts of a route, and note what its words say besides."""
        if rule not in _read:
            before = len(self._trace)
            parts = list(super()._parse_rule(rule))
            trace = self._trace[before:]
            named = {name: self._converters[name] for is_name, name in trace if is_name}
            _read[rule] = parts, trace, named
            return parts
        parts, trace, named = _read[rule]
        self._trace += trace
        self._converters.update(named)
        self.arguments.update(named)
        return parts

    def _compile_builder(self, append_unknown: bool = True) -> Any:
        if self.defaults:
            return super()._compile_builder(append_unknown)
        words = (append_unknown, *self._trace)
        if words not in _made:
            _made[words] = super()._compile_builder(append_unknown)
        return _made[words]
