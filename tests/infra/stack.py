"""The whole stack as processes, as `make run` starts it, on free ports and in memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from rollforward.runtime import open_datastore

ROOT = Path(__file__).parents[2]
PORTS = ("APP", "CONSOLE", "TASKS", "DATASTORE", "MEMCACHE", "MAIL")
STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class Stack:
    """A running stack: where its parts are, and what a test asks of them."""

    app: str
    console: str
    datastore: str
    project: str
    visitor: requests.Session = field(default_factory=requests.Session)

    def post(self, url: str, **fields: Any) -> requests.Response:
        """Send a form as a visitor would, with the tokens of the page at `url`'s party."""
        page = self.visitor.get(fields.pop("page"), timeout=30).text
        form = {"csrf_token": _hidden(page, "csrf_token"), "id": _hidden(page, "id"), **fields}
        return self.visitor.post(url, data=form, timeout=30)

    def press(self, path: str, **fields: str) -> requests.Response:
        """Press a button of the first page, with all hidden fields of its form."""
        page = self.visitor.get(self.app, timeout=30).text
        form = next(part for part in page.split("<form")[1:] if f'action="{path}"' in part)
        hidden = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form.partition("</form>")[0]))
        url = self.app.rstrip("/") + path
        return self.visitor.post(url, data={**hidden, **fields}, timeout=30)

    def control(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 30) -> Any:
        """Ask the local platform; a body makes it a POST."""
        method = "GET" if body is None else "POST"
        answer = requests.request(method, self.console + path, json=body, timeout=timeout_s)
        answer.raise_for_status()
        return answer.json()

    def mails(self) -> Counter[str]:
        """Return how often each mail arrived, by Message-ID."""
        found: Counter[str] = Counter()
        before = ""
        while True:
            page = self.control(f"/api/v1/mail?limit=500{before}")["messages"]
            if not page:
                return found
            found.update(mail["message_id"] for mail in page)
            before = f"&before={page[-1]['id']}"

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Look into Datastore past the app."""
        client = open_datastore(self.project, emulator=self.datastore)
        with client.context(cache_policy=False):
            yield


def _hidden(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page)
    return found.group(1) if found else ""


@contextlib.contextmanager
def running_stack(
    *arguments: str,
    folder: Path = ROOT,
    reloads: bool = False,
    program: Sequence[str] = ("rollforward.local",),
    **environment: str,
) -> Iterator[Stack]:
    """Start the stack in a folder, yield it when it answers, stop it.

    Args:
        program: The module that starts it, and its first arguments.
    """
    ports = {f"{name}_PORT": "0" for name in PORTS}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **ports, **environment}
    command = [sys.executable, "-m", *program, "--memory", "--json", *arguments]
    if not reloads:
        command.append("--no-reload")
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        where = json.loads(process.stdout.readline())
        yield Stack(where["app"], where["console"], where["datastore"], where["project"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()


def until(claim: Callable[[], bool], timeout_s: float, every_s: float = 0.3) -> None:
    """Wait until a claim holds; how long that takes is not part of any test."""
    ends_at = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() > ends_at:
            raise AssertionError("it did not happen")
        time.sleep(every_s)
