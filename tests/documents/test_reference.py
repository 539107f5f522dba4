"""The reference of the API: each public name with its signature, its docstring and its source."""

from __future__ import annotations

import enum
import re
import typing
from collections.abc import Sequence
from typing import Any

import pytest

from docs.reference import api, docstrings, generate, signatures
from rollforward.runtime import Clients
from rollforward.runtime.process.optional_clients import function_with_optional_clients
from tests.infra.documents import ROOT, text_of

pytestmark = pytest.mark.fast

MODULES = [*(f"rollforward.{package}" for package in api.packages()), *api.public_modules()]


@pytest.mark.parametrize("module", ["rollforward", *MODULES])
def test_every_public_name_says_what_it_is(module: str) -> None:
    """A reader of the reference need not open the code, for a method neither."""
    entries = [entry for entry in api.entries(module) if entry.kind not in ("constant", "module")]
    members = [member for entry in entries for member in entry.members]

    assert api.entries(module)
    assert [entry.name for entry in [*entries, *members] if not entry.doc] == []


def test_every_door_has_a_page_and_no_page_is_left_behind() -> None:
    """A package that was renamed would leave its page."""
    written = {path.stem for path in (ROOT / "docs/reference/api").glob("*.md")}

    assert written == set(api.packages())
    assert {"tasks", "streams", "flask"} <= written


def test_a_page_shows_signature_arguments_errors_and_source() -> None:
    """By the example of a function that has them all."""
    page = text_of("docs/reference/api/datastore.md")
    section = page.partition("## function transact\n")[2].partition("\n## ")[0]

    assert "def transact(\n    body: Callable[[], T],\n    *,\n    attempts: int = 4," in section
    assert "**Args**\n\n- `body`: " in section
    assert "**Raises**\n\n- `NoContextError`: " in section
    assert "](../../../rollforward/datastore/" in section


def test_a_name_of_the_front_door_leads_to_the_page_of_its_package() -> None:
    """It is documented once."""
    assert "[`rf.transact`](api/datastore.md#function-transact)" in text_of("docs/reference/api.md")
    assert "rollforward: transact of datastore" in api.lines()


def test_the_list_has_each_method_with_its_types() -> None:
    """What a release would break is a line of it."""
    lines = text_of("docs/reference/public-api.txt").splitlines()

    assert lines == sorted(api.lines())
    assert any(line.startswith("rollforward.tasks: def Task.bind(") for line in lines)
    assert not [line for line in lines if re.search(r" at 0x|\._\w|ForwardRef", line)]


DOCSTRING = """Do *it* to <all> of them.

It has `*args` and one more
line.

    do(1)

    do(2)

Args:
    first: The first one,
        on two lines.
    *others: More.

Returns:
    The rest.
"""
MARKDOWN = """Do \\*it\\* to \\<all> of them.

It has `*args` and one more
line.

```python
do(1)

do(2)
```

**Args**

- `first`: The first one,
  on two lines.
- `*others`: More.

**Returns**

The rest."""


def test_a_docstring_becomes_markdown() -> None:
    """Its code is code, its sections are lists, and its signs are signs."""
    assert docstrings.markdown(DOCSTRING) == MARKDOWN


def sample(a: int, /, b: str = "x", *rest: Any, key: Sequence[str] | None = None) -> None: ...


def spacious(
    a: Sequence[int], *, an_argument_of_a_long_name: dict[str, int], b: int = 1
) -> int: ...


class Colour(enum.Enum):
    RED = 1


class Protocol(typing.Protocol):
    def paint(self) -> None: ...


class Painter(Protocol):
    def paint(self) -> None: ...


@function_with_optional_clients
def count(clients: Clients, key: str) -> int: ...


class SomeError(Exception):
    """An error."""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (
            sample,
            "def x(a: int, /, b: str = 'x', *rest: Any, key: Sequence[str] | None = None) -> None",
        ),
        (count, "def x([clients: Clients, ]key: str) -> int"),
        (Colour, "class x(Enum)\n    RED"),
        (Protocol, "class x"),
        (SomeError, "class x"),
    ],
)
def test_a_signature_reads_as_in_the_code(value: Any, shown: str) -> None:
    """On every version of Python in the same way."""
    assert signatures.of_callable("x", value) == [shown]


def test_a_class_reads_the_same_after_its_first_instance() -> None:
    """`typing` replaces the constructor of a protocol's implementation then."""
    before = signatures.of_callable("x", Painter)
    Painter()

    assert before == signatures.of_callable("x", Painter) == ["class x()"]


def test_a_long_signature_has_a_line_for_each_parameter() -> None:
    """It is read on a phone, too."""
    [shown] = signatures.of_callable("x", spacious)

    assert shown.splitlines() == [
        "def x(",
        "    a: Sequence[int],",
        "    *,",
        "    an_argument_of_a_long_name: dict[str, int],",
        "    b: int = 1,",
        ") -> int",
    ]


def test_the_generator_writes_the_list_and_the_pages_with_the_others() -> None:
    """`make reference` is one command."""
    assert {"api.md", "api/tasks.md", "public-api.txt", "errors.md"} <= generate.pages().keys()
