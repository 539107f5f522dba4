"""An app of one's own on the local platform: the example shop, and the tutorial as written."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.stack import ROOT, Stack, running_stack, until

pytestmark = pytest.mark.process

FILE = re.compile(r"^`([\w.]+)`\n\n```\w+\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LIMIT_S = 60.0


def page(stack: Stack) -> str:
    """Return the first page; an app that is reloading has none."""
    try:
        return stack.visitor.get(stack.app, timeout=30).text
    except requests.ConnectionError:
        return ""


def shows(stack: Stack, *texts: str) -> None:
    """Wait until the first page has some texts."""
    until(lambda: all(text in page(stack) for text in texts), LIMIT_S)


@pytest.fixture(scope="module")
def shop() -> Iterator[Stack]:
    with running_stack("--target", "docs.examples.shop:serve") as stack:
        yield stack


def test_the_example_shop_sells_counts_and_raises_prices(shop: Stack) -> None:
    """A form that is sent twice sells once; the view, the visits and the prices follow."""
    assert shop.press("/open").status_code == 200
    for _ in range(3):
        shop.press("/buy", product="lamp", form_id="f" * 32)
    shop.press("/buy", product="lamp")
    shows(shop, "<td>2\n", "<td>50.00")
    shop.press("/raise")
    shows(shop, "26.25", "51.45", "208.95")
    until(lambda: int(cell(page(shop), "chair", 2)) > 3, LIMIT_S)


def cell(text: str, product: str, column: int) -> str:
    """Return a cell of a product's row."""
    row = next(row for row in text.split("<tr>") if f"<td>{product}\n" in row)
    return row.split("<td>")[column + 1].strip()


def test_forms_of_the_shop_need_a_token(shop: Stack) -> None:
    """S14: what any app mounts guards its forms, too."""
    url = shop.app.rstrip("/") + "/buy"
    forged = requests.post(url, data={"product": "lamp", "form_id": "x"}, timeout=30)
    assert forged.status_code == 403


def test_the_shop_is_short_and_enters_by_the_doors() -> None:
    """An app of one's own needs no more than 150 lines, and nothing behind a pattern's door."""
    source = (ROOT / "docs/examples/shop/__init__.py").read_text(encoding="utf-8")

    assert len(source.splitlines()) <= 150
    imported = set(re.findall(r"^from (\S+) import|^import (\S+)", source, flags=re.MULTILINE))
    modules = {one or other for one, other in imported}
    assert {m for m in modules if m.count(".") > 1} == set()
    assert {m.split(".")[0] for m in modules} <= {
        *("__future__", "collections", "dataclasses", "flask", "google"),
        *("handlers", "models", "pipelines"),
    }


def steps() -> list[dict[str, str]]:
    """Return the files of each step of the tutorial, as they stand there."""
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    return [files for part in text.split("\n## ")[1:] if (files := dict(FILE.findall(part)))]


def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    """Each step's files are copied over those of the step before, while the app runs."""
    hello, sell, view, visits, prices = steps()
    write(tmp_path, hello)
    with running_stack("--target", "shop:serve", folder=tmp_path, reloads=True) as stack:
        shows(stack, "Look at the terminal.")
        write(tmp_path, sell)
        shows(stack, "0 sold, 0 shipped.")
        stack.press("/sell")
        shows(stack, "1 sold, 1 shipped.")
        write(tmp_path, view)
        until(lambda: "shipped." not in page(stack) and "Sell a lamp" in page(stack), LIMIT_S)
        for _ in range(2):
            stack.press("/sell", form_id="g" * 32)
        shows(stack, "lamp: 1 sold, 1 shipped", "2500 cents earned")
        write(tmp_path, {**visits, **prices})
        shows(stack, "A lamp costs 2500 cents.")
        stack.press("/raise")
        shows(stack, "A lamp costs 2750 cents.")
        stack.press("/sell")
        shows(stack, "lamp: 2 sold, 2 shipped", "5250 cents earned")
        until(lambda: number(page(stack), r"(\d+) visits") > 3, LIMIT_S)


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files as an editor does, each at once."""
    for name, text in files.items():
        draft = folder / f".{name}.draft"
        draft.write_text(text, encoding="utf-8")
        draft.replace(folder / name)
    time.sleep(0.1)


def number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0
