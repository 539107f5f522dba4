"""Note which lines each test reaches, and how long it takes: a plugin of pytest for `mutants.py`.

    REACHED=answer.json REACHED_MODULES=a.py:b.py pytest -p tests.infra.mutation.line_coverage

The answer is by test: {"seconds": 0.2, "lines": {"a.py": [12, 13]}}. Under "" stands
what is reached before the first test: what an import runs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest


class Reached:
    """A trace function, and what it saw."""

    def __init__(self, modules: list[str]) -> None:
        self.modules = {str(Path(module).resolve()): module for module in modules}
        self.lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.seconds: dict[str, float] = {}
        self.test = ""
        self._lines_of: dict[int, tuple[CodeType, set[int]]] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        module = self.modules.get(frame.f_code.co_filename)
        if module is None:
            return None
        seen = self.lines[self.test][module]
        seen.add(frame.f_lineno)
        if self._all_of(frame.f_code) <= seen:
            return None  # There is no more to be seen, and to look on takes time.

        def look(frame: FrameType, event: str, arg: object) -> Any:
            seen.add(frame.f_lineno)
            return look

        return look

    def _all_of(self, code: CodeType) -> set[int]:
        if id(code) not in self._lines_of:
            lines = {line for _, _, line in code.co_lines() if line is not None}
            self._lines_of[id(code)] = code, lines
        return self._lines_of[id(code)][1]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        began_s = time.monotonic()
        yield
        self.seconds[item.nodeid] = time.monotonic() - began_s

    def pytest_sessionfinish(self) -> None:
        told = {
            test: {
                "seconds": round(self.seconds.get(test, 0.0), 3),
                "lines": {module: sorted(lines) for module, lines in self.lines[test].items()},
            }
            for test in ("", *self.seconds)
        }
        Path(os.environ["REACHED"]).write_text(json.dumps(told))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(REACHED)


REACHED = Reached(os.environ["REACHED_MODULES"].split(":"))
threading.settrace(REACHED)
sys.settrace(REACHED)
