"""Code in documents runs as it stands there, and examples in the code are true."""

from __future__ import annotations

import doctest
import importlib
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from docs.examples import count_visits, print_books, raise_prices, ship_purchases, sum_up_sales
from tests.documents import (
    PACKAGES,
    ROOT,
    sources,
    text_of,
)


def modules_with_doctests() -> list[str]:
    found = [path for path in sources(*PACKAGES) if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found]


@pytest.mark.parametrize("name", modules_with_doctests())
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    """An example shows what the function really returns."""
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_readme_shows_the_example_as_it_runs() -> None:
    """The code in the README is the code of the example, to the letter."""
    source = text_of("docs/examples/raise_prices.py")
    shown = source.partition("# README: from here\n")[2].partition("# README: to here\n")[0]
    readme = text_of("README.md")
    assert shown.strip()
    assert f"<!-- docs/examples/raise_prices.py -->\n```python\n{shown.strip()}\n```\n" in readme


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_does_what_the_readme_says(
    kind: str, datastore_address: Callable[[str], str], cloud_tasks: Any
) -> None:
    """Started twice and delivered twice, each book gets dearer once."""
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said, prices = raise_prices.walk(clients, cloud_tasks)

    assert f"{said}; prices in cents: {prices}\n" in text_of("README.md")


def test_the_howto_shows_the_example_of_the_outbox_as_it_runs() -> None:
    """The code in the howto is the code of the example, to the letter."""
    source = text_of("docs/examples/ship_purchases.py")
    shown = source.partition("# howto: from here\n")[2].partition("# howto: to here\n")[0]
    howto = text_of("docs/howto/enqueue-in-a-transaction.md")
    assert shown.strip()
    assert f"<!-- docs/examples/ship_purchases.py -->\n```python\n{shown.strip()}\n```\n" in howto


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_of_the_outbox_does_what_the_howto_says(
    kind: str, datastore_address: Callable[[str], str], cloud_tasks: Any
) -> None:
    """What was committed is shipped, what was aborted is not, and a dead process loses nothing."""
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said = ship_purchases.play(clients, cloud_tasks)

    assert f"{said}\n" in text_of("docs/howto/enqueue-in-a-transaction.md")


def test_the_howto_shows_the_example_of_the_views_as_it_runs() -> None:
    """The code in the howto is the code of the example, to the letter."""
    source = text_of("docs/examples/sum_up_sales.py")
    shown = source.partition("# howto: from here\n")[2].partition("# howto: to here\n")[0]
    howto = text_of("docs/howto/declare-a-view.md")
    assert shown.strip()
    assert f"<!-- docs/examples/sum_up_sales.py -->\n```python\n{shown.strip()}\n```\n" in howto


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_of_the_views_does_what_the_howto_says(
    kind: str, datastore_address: Callable[[str], str], cloud_tasks: Any
) -> None:
    """Delivered twice, rows follow what is saved, moved and deleted, and what is built anew."""
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said = "\n".join(sum_up_sales.play(clients, cloud_tasks))

    assert f"docs.examples.sum_up_sales\n{said}\n```\n" in text_of("docs/howto/declare-a-view.md")


def test_the_howto_shows_the_example_of_the_fork_join_queue_as_it_runs() -> None:
    """The code in the howto is the code of the example, to the letter."""
    source = text_of("docs/examples/count_visits.py")
    shown = source.partition("# howto: from here\n")[2].partition("# howto: to here\n")[0]
    howto = text_of("docs/howto/gather-writes.md")
    assert shown.strip()
    assert f"<!-- docs/examples/count_visits.py -->\n```python\n{shown.strip()}\n```\n" in howto


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_of_the_fork_join_queue_does_what_the_howto_says(
    kind: str, datastore_address: Callable[[str], str], cloud_tasks: Any
) -> None:
    """Each visit counts once, in one write a page, though some come twice and all tasks do."""
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said = count_visits.play(clients, cloud_tasks)

    assert f"count_visits\n{said}\n```\n" in text_of("docs/howto/gather-writes.md")


def test_the_howto_shows_the_example_of_a_batch_as_it_runs() -> None:
    """The code in the howto is the code of the example, to the letter."""
    source = text_of("docs/examples/print_books.py")
    shown = source.partition("# howto: from here\n")[2].partition("# howto: to here\n")[0]
    howto = text_of("docs/howto/run-a-batch.md")
    assert shown.strip()
    assert f"<!-- docs/examples/print_books.py -->\n```python\n{shown.strip()}\n```\n" in howto


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_of_a_batch_does_what_the_howto_says(
    kind: str, datastore_address: Callable[[str], str], cloud_tasks: Any
) -> None:
    """Ordered twice and delivered twice, the book is bound once, when its last page is printed."""
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said = "\n".join(print_books.play(clients, cloud_tasks))

    assert f"docs.examples.print_books\n{said}\n```\n" in text_of("docs/howto/run-a-batch.md")


def test_the_readme_shows_what_make_run_prints() -> None:
    """The services, states and notes of the quick start are those of the code that prints them."""
    files = ("stack", "service_table", "__main__")
    stack = "".join(text_of(f"devserver/{name}.py") for name in files)
    quick_start = text_of("README.md").partition("## Quick start")[2].partition("\n## ")[0]
    shown = re.findall(r"^  ✓ (App|Console|[A-Z][\w ]+?|memcached)  ", quick_start, re.MULTILINE)
    services = re.findall(r'ServiceState\(\s*"([\w ]+)"', stack)
    assert set(services) <= set(shown)
    for words in ("kept here, delivered to nobody", "from cron.yaml", "in memory", "kept in .dev/"):
        assert words in stack
        assert words in quick_start
