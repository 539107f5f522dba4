"""`make seed`, and an app whose worker has just ended."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pipelines.blog.__main__ import main

PAGES = {
    "/blog/new": '<input name="csrf_token" value="t">',
    "/blog/samples": "filling",
    "/blog/live": '<div data-done="3" data-total="3">',
}


class Restarting(BaseHTTPRequestHandler):
    """Closes the first connection to each page without an answer."""

    asked: dict[str, int]

    def do_GET(self) -> None:
        self.asked[self.path] = self.asked.get(self.path, 0) + 1
        if self.asked[self.path] > 1:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGES[self.path].encode())

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Restarting.asked = {}
    with HTTPServer(("127.0.0.1", 0), Restarting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_connection_that_is_reset_does_not_end_it(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks again, also for the samples: to ask twice fills the blog once."""
    monkeypatch.setattr(sys, "argv", ["seed", "--url", url])

    assert main() == 0
    assert "3 of 3" in capsys.readouterr().out
    assert Restarting.asked == dict.fromkeys(PAGES, 2)


def test_an_app_that_does_not_run_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that starts it."""
    monkeypatch.setattr(sys, "argv", ["seed", "--url", "http://127.0.0.1:1"])

    assert main() == 1
    assert "make run" in capsys.readouterr().out
