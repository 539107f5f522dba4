"""The page that compares emulators of Cloud Tasks: one row for each test of `tests/emulators`."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from docs.reference.docstrings import summary
from tests.infra.documents import ROOT

TESTS = "tests/emulators"
_UNKNOWN = "?"
_ABOUT = """Each row of the first table is a test that can be pointed at any emulator:

```sh
EMULATOR=127.0.0.1:8123 make test ARGS="-m emulators"
```

Without `EMULATOR` the tests run against `rollforward tasks-emulator`, with all others: a release
in which one of them fails does not come out. The emulator must reach a handler on 127.0.0.1, so
run its image with `--network host`.

- "yes" and "no" of an emulator that was run are outcomes of the test.
- Those of an emulator that was not run are what its own documents say; there was neither Docker
  nor a way to its releases where this page was written. "?": they do not say."""

_RATES = """Dispatches of a backlog, counted at the handler ten times a second, beside the token
bucket that the service documents: it begins full, with the burst, and gains the rate.
`make bench NAMES=cloudtasks` measures them, and `python -m benchmarks.cloudtasks.plot` draws its
lines: last on 2026-11-26, on two cores.

![Dispatches beside the token bucket, at 5, 50 and 500 a second](../images/dispatch-rates.svg)"""


def parts() -> Iterator[str]:
    """Yield the parts of the page.

    Raises:
        ValueError: the table has a row for a test that does not exist.
    """
    data = tomllib.loads((ROOT / "docs/reference/emulators.toml").read_text(encoding="utf-8"))
    emulators, claims = data["emulators"], dict(_claims())
    if missing := sorted({*data["tests"]} - {*claims}):
        raise ValueError(f"{TESTS} has no test {missing}")
    head = ["", "Test", "ours", *(emulator["name"] for emulator in emulators)]
    yield _ABOUT
    yield "\n".join(f"- **{emulator['name']}**: {emulator['source']}" for emulator in emulators)
    yield "## What can be tested from outside"
    yield _table(
        head,
        [
            [claim, f"`{name}`", "yes", *_cells(data["tests"].get(name, {}), emulators)]
            for name, claim in claims.items()
        ],
    )
    yield "## Dispatch rates over time"
    yield _RATES
    yield "## What belongs to one emulator"
    yield "Tests of ours hold the second column; the others are what their documents say."
    yield _table(head, [_feature_row(feature, emulators) for feature in data["features"]])


def _claims() -> Iterator[tuple[str, str]]:
    """Yield the name of each test, and the first line of its docstring."""
    for path in sorted((ROOT / TESTS).glob("test_*.py"), reverse=True):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node.name, summary(ast.get_docstring(node))


def _feature_row(feature: dict[str, Any], emulators: Sequence[dict[str, Any]]) -> list[str]:
    if not (ROOT / feature["test"]).is_file():
        raise ValueError(f"there is no {feature['test']}")
    test = feature["test"].rpartition("/")[2]
    link = f"[{test}](../../{feature['test']})"
    ours = feature.get("ours", "yes")
    return [feature["feature"], link, ours, *_cells(feature["cells"], emulators)]


def _cells(cells: dict[str, str], emulators: Sequence[dict[str, Any]]) -> list[str]:
    return [cells.get(emulator["key"], _UNKNOWN) for emulator in emulators]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
