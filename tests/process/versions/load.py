"""A load generator: buyers who send each form again until the shop has accepted it.

    python -m tests.process.versions.load URL

It prints a line of JSON for each accepted form, and ends when its input ends.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import traceback
from typing import Any

import requests

BUYERS = 2
PAUSE_S = 0.15
PRODUCTS = ("chair", "lamp", "table")
LABELS_EVERY, RAISE_EVERY = 4, 20  # Forms of one buyer.

IS_OVER = threading.Event()


class Buyer:
    """A visitor with a session; either version may answer each request of it."""

    def __init__(self, url: str, number: int) -> None:
        self.url, self.number = url, number
        self.session = requests.Session()
        self.token = ""

    def run(self) -> None:
        """Buy until the end; a form that is refused ends the process."""
        try:
            self._buy()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _buy(self) -> None:
        count = 0
        while not IS_OVER.wait(PAUSE_S):
            count += 1
            id_ = f"buyer-{self.number}-{count:04}"
            self.send("/sell", id=id_, product=PRODUCTS[count % len(PRODUCTS)])
            if count % LABELS_EVERY == 0:
                self.send("/labels")
            if count % RAISE_EVERY == 0:
                self.send("/raise", id=id_)

    def send(self, path: str, **fields: str) -> None:
        """Send a form until it is accepted, and print that."""
        sent = 1
        while (answer := self._answer(path, fields)) is None:
            time.sleep(PAUSE_S)
            sent += 1
        sys.stdout.write(f"{json.dumps({'path': path, 'sent': sent, **fields, **answer})}\n")
        sys.stdout.flush()

    def _answer(self, path: str, fields: dict[str, str]) -> dict[str, Any] | None:
        try:
            if not self.token:
                page = self.session.get(self.url, timeout=30)
                assert page.status_code in (200, 503), page.text
                if page.status_code == 503:
                    return None
                self.token = re.findall(r'name="csrf_token" value="([^"]+)"', page.text)[0]
            form = {"csrf_token": self.token, **fields}
            answer = self.session.post(f"{self.url}{path}", data=form, timeout=30)
            if answer.status_code == 200:
                return dict(answer.json())
            # A form is never refused, and neither version fails over it.
            assert answer.status_code == 503, f"{path}: {answer.status_code} {answer.text}"
        except (requests.ConnectionError, requests.Timeout):
            pass
        return None


def main(url: str) -> None:
    """Run all buyers until the input ends."""
    buyers = [threading.Thread(target=Buyer(url, number).run) for number in range(BUYERS)]
    for buyer in buyers:
        buyer.start()
    sys.stdin.read()
    IS_OVER.set()
    for buyer in buyers:
        buyer.join()


if __name__ == "__main__":
    main(sys.argv[1])
