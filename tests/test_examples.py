"""Code in documents runs as it stands there, and examples in the code are true."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.cloud import ndb

from docs.examples import (
    cache_front_page,
    count_likes,
    count_visits,
    mail_digests,
    make_thumbnails,
    page_books,
    print_books,
    raise_prices,
    send_notices,
    ship_purchases,
    sum_up_sales,
)
from rollforward.local.target import Target
from rollforward.runtime import Clients, Meter, open_cache, open_datastore
from tests.infra.documents import PACKAGES, ROOT, sources, text_of


def modules_with_doctests() -> list[str]:
    paths = [*sources(*PACKAGES), *sorted((ROOT / "tests/infra").rglob("*.py"))]
    with_examples = [path for path in paths if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in with_examples]


@pytest.mark.parametrize("name", modules_with_doctests())
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    """An example shows what the function really returns."""
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def raised(clients: Clients, cloud_tasks: Any) -> str:
    said, prices = raise_prices.walk(clients, cloud_tasks)
    return f"{said}; prices in cents: {prices}"


def summed(clients: Clients, cloud_tasks: Any) -> str:
    return "\n".join(sum_up_sales.play(clients, cloud_tasks))


def printed(clients: Clients, cloud_tasks: Any) -> str:
    return "\n".join(print_books.play(clients, cloud_tasks))


def register_kinds_of(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ndb read rows by a module's classes: several examples sell, and the last one would."""
    for declared in vars(importlib.import_module(module)).values():
        if isinstance(declared, type) and issubclass(declared, ndb.Model):
            monkeypatch.setitem(ndb.Model._kind_map, declared._get_kind(), declared)


# Each example, what it prints, and the document that says so.
EXAMPLES: dict[str, tuple[Callable[[Clients, Any], str], str]] = {
    "raise_prices": (raised, "docs/howto/add-a-job.md"),
    "ship_purchases": (ship_purchases.play, "docs/howto/enqueue-in-a-transaction.md"),
    "sum_up_sales": (summed, "docs/howto/declare-a-view.md"),
    "make_thumbnails": (make_thumbnails.play, "docs/howto/lease-work.md"),
    "count_likes": (count_likes.play, "docs/howto/count-things.md"),
    "print_books": (printed, "docs/howto/run-a-batch.md"),
    "count_visits": (count_visits.play, "docs/howto/gather-writes.md"),
    "send_notices": (send_notices.play, "docs/howto/use-lanes.md"),
    "mail_digests": (mail_digests.play, "docs/howto/debounce.md"),
}


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_its_document_says(
    kind: str,
    name: str,
    datastore_address: Callable[[str], str],
    cloud_tasks: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each delivers its tasks twice and breaks something: the totals are exact all the same."""
    play, document = EXAMPLES[name]
    register_kinds_of(f"docs.examples.{name}", monkeypatch)
    cloud_tasks.engine.reset()
    clients = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    said = play(clients, cloud_tasks)

    assert f"$ .venv/bin/python -m docs.examples.{name}\n{said}\n```\n" in text_of(document)


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_of_the_query_cache_does_what_the_howto_says(
    kind: str,
    datastore_address: Callable[[str], str],
    memcached_address: str | None,
    cloud_tasks: Any,
) -> None:
    """One read for a hundred visitors, and another one after something is published."""
    opened = raise_prices.open_clients(
        datastore_address(kind), cloud_tasks, namespace=f"docs-{uuid.uuid4().hex[:8]}"
    )

    with contextlib.closing(open_cache(memcached_address)) as cache:
        said = cache_front_page.play(replace(opened, cache=cache))

    assert f"docs.examples.cache_front_page\n{said}\n```\n" in text_of(
        "docs/howto/cache-a-query.md"
    )


@pytest.mark.parametrize("kind", ["datastore", "firestore"])
def test_the_example_of_paging_does_what_the_howto_says(
    kind: str, datastore_address: Callable[[str], str]
) -> None:
    """Each book once, at the same cost on each page, while books come and go."""
    meter = Meter()
    client = open_datastore(
        "demo-docs",
        emulator=datastore_address(kind),
        namespace=f"docs-{uuid.uuid4().hex[:8]}",
        interceptors=[meter],
    )

    said = "\n".join(page_books.play(client, meter))

    assert f"page_books\n{said}\n```\n" in text_of("docs/howto/page-through-a-list.md")


def test_the_readme_shows_what_make_run_prints() -> None:
    """The services, states and notes of the quick start are those of the code that prints them."""
    files = ("stack", "service_table", "target", "__main__")
    stack = "".join(text_of(f"rollforward/local/{name}.py") for name in files)
    quick_start = text_of("README.md").partition("## Quick start")[2].partition("\n## ")[0]
    shown = re.findall(r"^  ✓ (App|Console|[A-Z][\w ]+?|memcached)  ", quick_start, re.MULTILINE)
    services = re.findall(r'ServiceState\(\s*"([\w ]+)"', stack)
    assert set(services) <= set(shown)
    for words in ("kept here, delivered to nobody", "in memory", "kept in .dev/"):
        assert words in stack
        assert words in quick_start
    target = Target("main:serve", ROOT, ROOT / "queue.yaml", ROOT / "cron.yaml")
    assert target.cron_source in quick_start


def test_no_example_takes_a_kind_of_another_module() -> None:
    """The class that is declared last would read the rows of both."""
    declared: dict[str, set[str]] = {}
    for folder in ("docs/examples", "models", "pipelines", "rollforward"):
        for path in (ROOT / folder).rglob("*.py"):
            for kind in re.findall(r"^class (\w+)\(ndb\.Model\)", path.read_text(), re.MULTILINE):
                declared.setdefault(kind, set()).add(str(path.relative_to(ROOT)))
    shared = {
        kind: paths
        for kind, paths in declared.items()
        if len({path.startswith("docs/examples/") for path in paths}) > 1
    }
    assert shared == {}
