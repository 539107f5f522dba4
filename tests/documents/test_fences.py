"""Every block of code in the documents is run, compiled, parsed or drawn by a test.

A block says by its language which check is its own. Python runs with the other blocks of its page
where another test does that, or else alone. A block that no test can run stands below
`<!-- not run: the reason -->`, and is compiled.
"""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from rollforward.cli.program import COMMANDS
from tests.infra.documents import DOCUMENTS, ROOT, named, text_of
from tests.infra.migration import PAGES as MIGRATION
from tests.infra.snippets import BLOCK
from tests.test_snippets import PAGES

pytestmark = pytest.mark.fast

FENCE = re.compile(
    r"^(?P<mark>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=mark)`*$",
    flags=re.MULTILINE | re.DOTALL,
)
NOT_RUN = re.compile(r"<!-- not run: (\S.+) -->\n$")
GENERATED = ROOT / "docs/reference"
# Run in turn, in one module (test_snippets.py); the tutorial's files make an app (tutorial.py);
# those that lead from another library are run row by row (test_migration.py).
RUN = {*PAGES, *MIGRATION, ROOT / "README.md", ROOT / "docs/tutorial.md"}
DIAGRAMS = ("flowchart", "sequenceDiagram", "stateDiagram-v2", "xychart-beta")


@dataclass(frozen=True)
class Fence:
    """A block of code of a document."""

    page: Path
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{named(self.page)}:{self.line}"


def fences() -> list[Fence]:
    found = []
    for page in DOCUMENTS:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            marked = NOT_RUN.search(text[: match.start()])
            line = text.count("\n", 0, match.start()) + 1
            reason = marked[1] if marked else ""
            found.append(Fence(page, line, match["language"], match["text"], reason))
    return found


FENCES = fences()


def check_python(fence: Fence) -> None:
    if GENERATED in fence.page.parents:  # A signature, or the code of a docstring.
        return
    compile("\n" * fence.line + fence.text, str(fence.page), "exec")
    if fence.page in RUN or fence.reason:
        return
    alone = subprocess.run(
        [sys.executable, "-c", fence.text], cwd=ROOT, capture_output=True, text=True
    )
    assert alone.returncode == 0, f"{fence} does not run alone: {alone.stderr}"


def check_shell(fence: Fence) -> None:
    """Bash reads it, and what it calls of ours is there."""
    # What a reader fills in, `<url>`, is a redirection to bash.
    text = re.sub(r"<[\w-]+>", "filled-in", fence.text)
    parsed = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert parsed.returncode == 0, parsed.stderr
    targets = set(re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), flags=re.MULTILINE))
    assert (
        set(re.findall(r"(?:^|&& )make (?:-C \S+ )?([a-z-]+)", text, flags=re.MULTILINE)) <= targets
    )
    commands = re.findall(r"(?:^|&& |/)rollforward ([a-z]+)", text, flags=re.MULTILINE)
    assert set(commands) <= {command.name for command in COMMANDS}
    for module in re.findall(r"python3? -m ([\w.]+)", text):
        assert importlib.util.find_spec(module), f"{fence}: no module {module}"


def check_console(fence: Fence) -> None:
    """A test compares what the command prints with the page, letter for letter."""
    [command] = re.findall(r"^\$ (.+)$", fence.text, flags=re.MULTILINE)
    name = command.removeprefix(".venv/bin/python -m docs.examples.")
    assert name in text_of("tests/test_examples.py"), f"{fence}: no test runs {command}"


def check_ini(fence: Fence) -> None:
    assert configparser.ConfigParser().read_string(fence.text) is None


def check_diagram(fence: Fence) -> None:
    """A browser draws it where mermaid is there; a semicolon would end its statement."""
    assert fence.text.startswith(DIAGRAMS)
    assert ";" not in fence.text


def check_pycon(fence: Fence) -> None:
    """Its lines compile."""
    lines = re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", fence.text, flags=re.MULTILINE)
    compile("\n".join(lines), str(fence), "exec")


def check_diff(fence: Fence) -> None:
    """The test of the tutorial applies it (tests/infra/tutorial.py)."""
    assert fence.page == ROOT / "docs/tutorial.md"


def check_text(fence: Fence) -> None:
    """What a program prints, or a tree of files: nothing can be run."""
    assert not re.match(r"(?:\$|>>>|import |from |make |gcloud )", fence.text)


CHECKS: dict[str, Callable[[Fence], object]] = {
    "console": check_console,
    "diff": check_diff,
    "ini": check_ini,
    "json": lambda fence: json.loads(fence.text),
    "mermaid": check_diagram,
    "pycon": check_pycon,
    "python": check_python,
    "sh": check_shell,
    "text": check_text,
    "toml": lambda fence: tomllib.loads(fence.text),
    "yaml": lambda fence: yaml.safe_load(fence.text),
}


@pytest.mark.parametrize("page", DOCUMENTS, ids=named)
def test_every_block_of_code_holds(page: Path) -> None:
    """By the check of its language."""
    for fence in FENCES:
        if fence.page == page:
            assert fence.language in CHECKS, f"{fence}: name the language of the block"
            if fence.language != "sh" or shutil.which("bash"):
                CHECKS[fence.language](fence)


def test_no_block_is_unaccounted_for() -> None:
    """What opens a block is closed, and each is looked at, once."""
    marks = sum(
        len(re.findall(r"^ *`{3,}", page.read_text(encoding="utf-8"), flags=re.MULTILINE))
        for page in DOCUMENTS
    )

    assert marks == 2 * len(FENCES)
    assert len(FENCES) > 500
    assert {fence.language for fence in FENCES} <= set(CHECKS)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "def f(:\n"),
        ("python", "import nowhere_at_all\n"),
        ("sh", "if true\n"),
        ("sh", "make nothing\n"),
        ("sh", "rollforward fly\n"),
        ("sh", "python -m docs.nowhere\n"),
        ("console", "$ .venv/bin/python -m docs.examples.nowhere\n"),
        ("ini", "no section\n"),
        ("json", "{a: 1}\n"),
        ("mermaid", "sequenceDiagram\n  A->>B: one; two\n"),
        ("pycon", ">>> 1 +\n"),
        ("diff", "+a\n"),
        ("text", "make run\n"),
        ("toml", "a = \n"),
        ("yaml", "a: b: c\n"),
    ],
)
def test_each_check_can_fail(language: str, text: str) -> None:
    """A broken block of each language is found, on a page that no other test runs."""
    fence = Fence(ROOT / "docs/operations.md", 1, language, text, "")

    with pytest.raises(
        (AssertionError, SyntaxError, ValueError, configparser.Error, yaml.YAMLError)
    ):
        CHECKS[language](fence)


def test_a_block_that_gives_its_reason_is_compiled_only() -> None:
    """The reason is in the page, where its reader does not see it."""
    page = ROOT / "docs/operations.md"

    check_python(Fence(page, 1, "python", "open_bucket()\n", "it needs a bucket"))

    assert NOT_RUN.search("a\n<!-- not run: it needs a bucket -->\n")
    assert not NOT_RUN.search("<!-- not run: -->\n")
    text = (
        "<!-- not run: it needs a bucket -->\n```python\n1\n```\n<!-- old -->\n```python\n2\n```\n"
    )
    assert BLOCK.findall(f"{text}\n```python\n3\n```\n") == [("old", "2\n"), ("", "3\n")]
