"""An app of one's own on the local platform: the example shop, and the tutorial as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import rollforward as rf
from rollforward.local.system import ports
from tests.infra import tutorial
from tests.infra.runs import sampling
from tests.infra.stack import ROOT, Stack, running_stack, until

pytestmark = pytest.mark.process

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
        "rollforward",
    }
    entered = re.findall(r"\brf\.([a-z_]+)\.(\w+)", source)
    assert len(entered) > 3
    for package, name in entered:
        assert name in getattr(rf, package).__all__
    assert re.findall(r"\brf\.[a-z_]+\.[a-z_]+\.", source) == []


# A prompt on what runs


@pytest.fixture
def shell(shop: Stack) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A way to run lines in `rollforward shell`."""

    def run(code: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "CONSOLE_PORT": shop.console.rpartition(":")[2], **more}
        command = [sys.executable, "-m", "rollforward", "shell", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=env, input=code, capture_output=True, text=True, timeout=60
        )

    return run


def test_a_shell_has_the_apps_clients_names_and_context(shop: Stack, shell: Any) -> None:
    """What is sold at the prompt, the app that runs ships; a real project is never touched."""
    done = shell(
        "SALES.save(clients, Sale(id='shell-sale', product='stool', cents=900))\n"
        "ship.enqueue(clients, 'shell-sale')\n"
        "assert set(clients.task_paths) == set(registry.tasks)\n"
        "import rollforward\nassert rollforward.clients() is clients\n"  # As the tutorial has it.
        "print(Sale.get_by_id('shell-sale').cents, ndb.Key(Sale, 'x').id(), app.name)\n",
        GOOGLE_CLOUD_PROJECT="a-real-project",
        GOOGLE_APPLICATION_CREDENTIALS="/nowhere",
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "900 x docs.examples.shop\n"
    until(lambda: "True" in shell("", "-c", IS_SHIPPED).stdout, LIMIT_S)


IS_SHIPPED = "print(Sale.get_by_id('shell-sale').is_shipped)"


def test_a_shell_opens_another_app_when_it_is_told_to(shell: Any) -> None:
    """A target works as for a run, and needs as much: its queues; else ten lines say why not."""
    named = shell("print(*registry.jobs)", "docs.examples.shop:serve")
    other = shell("", "main:serve")
    away = shell("", "nowhere:serve")

    assert "raise-prices" in named.stdout
    assert (other.returncode, away.returncode) == (1, 1)
    assert re.search(r"UnknownQueueError: /tasks/\S+ goes to the queue '\S+'", other.stderr)
    assert "No module named 'nowhere'" in away.stderr
    assert max(len(done.stderr.splitlines()) for done in (other, away)) <= 10


def test_a_mistake_in_a_shell_is_shown_from_its_own_line_on(shell: Any) -> None:
    """And the script ends with an error."""
    done = shell("x = 1\nship.enqueue(clients, 5)\n")

    assert done.returncode == 1
    assert '  File "<shell>", line 2, in <module>' in done.stderr.splitlines()
    assert "shell.py" not in done.stderr
    assert done.stderr.endswith("sale_id: Input should be a valid string, not int\n")


def test_a_shell_without_a_platform_says_how_to_start_one(shell: Any) -> None:
    """Nothing answers, or something else does."""
    none = shell("", CONSOLE_PORT=str(ports.free_port()))
    wrong = shell("", CONSOLE_PORT="x")

    assert none.returncode == 1
    assert "Start it in another terminal: rollforward run." in none.stderr
    assert "CONSOLE_PORT is a port" in wrong.stderr


def test_the_exports_of_the_console_are_all_that_an_own_program_needs(shop: Stack) -> None:
    """Pasted into a shell, they open the services of the app; their secret key is another."""
    page = requests.get(shop.console, timeout=30).text
    exports = dict(re.findall(r"export (\w+)=(\S+)", page))
    code = (
        "import os\n"
        "from rollforward.flask import Settings, open_clients\n"
        "from docs.examples.shop import Sale, ship\n"
        "clients = open_clients(Settings.from_environment(os.environ), {})\n"
        "with clients.context():\n"
        "    Sale(id='own-sale', product='stool').put()\n"
        "    print(Sale.get_by_id('own-sale').product, ship.enqueue(clients, 'own-sale'))\n"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **exports}

    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "stool True\n", "")
    said = shop.control("/api/v1/shell")
    assert (said["target"], said["environment"]) == ("docs.examples.shop:serve", exports)


# The tutorial


@sampling.long
def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    """Each step's files are copied over those of the step before, while the app runs."""
    hello, sell, view, visits, prices = tutorial.steps()[:5]
    write(tmp_path, hello)
    with running_stack("--target", "shop:serve", folder=tmp_path, reloads=True) as stack:
        shows(stack, "Look at the terminal.")
        tasks, form = prompts()
        assert_prompt(stack, tmp_path, tasks)
        write(tmp_path, sell)
        shows(stack, "0 sold, 0 shipped.")
        stack.press("/sell")
        shows(stack, "1 sold, 1 shipped.")
        assert_prompt(stack, tmp_path, form)
        shows(stack, "2 sold, 2 shipped.")
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


def prompts() -> list[list[tuple[str, str]]]:
    """Return the lines of each prompt of the tutorial, with their answers; None shows none."""
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```pycon\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    said = [
        re.findall(r"^>>> (.+)\n(?!>>>)(.*)|^>>> (.+)", block, re.MULTILINE) for block in blocks
    ]
    return [[(line or alone, answer or "None") for line, answer, alone in block] for block in said]


def assert_prompt(stack: Stack, folder: Path, said: list[tuple[str, str]]) -> None:
    """Say at the prompt what the tutorial says, and get the answers that it shows."""
    assert len(said) == 2
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CONSOLE_PORT": stack.console.rpartition(":")[2],
    }
    for line, answer in said:
        command = [sys.executable, "-m", "rollforward.local.shell", "-c", f"print({line})"]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=60
        )
        assert (done.stdout + done.stderr).strip().endswith(answer)


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
