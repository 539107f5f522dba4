"""Requests: where a token goes, and what becomes of answers that are none of an API."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest

from rollforward.cli import main
from rollforward.cli.errors import WrongUsageError
from rollforward.cli.remote.http import endpoint
from rollforward.cli.remote.tables import table
from rollforward.local.app.wsgi import BROKEN, PROBLEM_HEADER
from rollforward.local.system.ports import free_port

pytestmark = pytest.mark.fast

TOKEN = "secret-token-of-a-person"


@dataclass
class Server:
    """An HTTP server that gives one answer, and keeps what it was asked."""

    url: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    requests: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer.requests.append({"path": self.path, **self.headers})
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def do_POST(self) -> None:
            """Take a change, and hang up."""
            answer.requests.append({"path": self.path})

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    answer = Server(f"http://127.0.0.1:{http_server.server_port}")
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield answer
    http_server.shutdown()
    thread.join()
    http_server.server_close()


def dead(server: Server, *arguments: str) -> int:
    return main(["dead", "--url", server.url, "--token", TOKEN, *arguments])


def test_the_token_is_a_bearer_token_and_json_is_asked_for(server: Server) -> None:
    assert dead(server) == 0
    (request,) = server.requests
    assert request["Authorization"] == f"Bearer {TOKEN}"
    assert request["X-Serverless-Authorization"] == f"Bearer {TOKEN}"  # For Cloud Run.
    assert request["Accept"] == "application/json"
    assert request["path"] == "/rollforward/api/v1/dead-tasks?limit=20"
    assert TOKEN not in repr(endpoint(server.url, "", "", TOKEN))  # As a traceback would show it.


def test_a_change_without_an_answer_may_have_been_made(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that nothing answers, so a person retried a flow's steps once more."""
    retry = ["runs", "retry", "flows", "f1", "--from", "charge", "--token", TOKEN, "--url"]

    assert main([*retry, server.url]) == 3
    assert "It may have been made: look before" in capsys.readouterr().err
    assert main([*retry, f"http://127.0.0.1:{free_port()}"]) == 3
    assert "Nothing answers at" in capsys.readouterr().err


def test_a_shell_without_a_platform_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    """As every other command that nothing answers."""
    assert main(["shell", "-c", "1", "--console", f"http://127.0.0.1:{free_port()}"]) == 3
    assert "No local platform answers at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "body", "code", "text"),
    [
        (200, b"<html>", 5, "mounts no console"),
        (200, b"[]", 5, "mounts no console"),
        (200, b"[" * 100_000, 5, "mounts no console"),
        (404, b"", 5, "mounts no console"),
        (404, b'{"detail": "Not Found"}', 5, "mounts no console"),
        (401, b"", 4, "does not accept this caller (401)"),
        (403, b'{"detail": "No."}', 4, "No."),
        (400, b'{"detail": "limit is a number."}', 2, "limit is a number."),
        (429, b"", 1, "answers 429: try again in a moment"),
        (500, b"<html>", 1, "answers 500"),
        (503, b'{"detail": "a \\u001b[31mservice"}', 1, "a ?[31mservice"),
    ],
)
def test_an_answer_that_is_no_list_is_a_sentence_and_an_exit_code(
    server: Server,
    capsys: pytest.CaptureFixture[str],
    status: int,
    body: bytes,
    code: int,
    text: str,
) -> None:
    server.status, server.body = status, body

    assert dead(server) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert text in output.err
    assert TOKEN not in output.err


def test_an_app_that_cannot_be_loaded_says_so(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the local platform answers in its place: no later try helps."""
    server.status, server.body = 500, b"<html>"
    server.headers = {PROBLEM_HEADER: f"{BROKEN} {quote('shop.py, line 1: NameError')}"}

    assert dead(server) == 1
    assert "The app cannot be loaded: shop.py, line 1: NameError" in capsys.readouterr().err


def test_a_redirect_is_not_followed(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The other host would get the token."""
    server.status, server.headers = 302, {"Location": f"{server.url}/login"}

    assert dead(server) == 4
    assert len(server.requests) == 1
    assert "redirects to 127.0.0.1, which is perhaps a login" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://shop.example", "http://localhost.example:80"])
def test_a_token_does_not_travel_in_plain_text(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From wherever it comes; nothing is sent."""
    monkeypatch.setenv("ROLLFORWARD_TOKEN", TOKEN)

    assert main(["dead", "--url", url]) == 2
    assert capsys.readouterr().err == (
        "rollforward dead: A token is sent by https only, or to this machine.\n"
    )


@pytest.mark.parametrize("token", ["a b", "a\r\nX-Evil: 1", "ä", "a" * 20_000])
def test_a_token_that_is_none_is_refused_and_not_shown(
    token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dead", "--url", "https://shop.example", "--token", token]) == 2
    assert token not in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        *(
            "shop.example",
            "ftp://shop.example",
            "https://",
            "https://[",
            "https://a:b@shop.example",
        ),
        *("https://shop.example?x=1", "https://shop.example:port", "https://sh\x1bop.example"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(WrongUsageError, match="A URL is like") as caught:
        endpoint(url, "/api", "")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [["--url", "https://a.example", "--console", "http://localhost:1"], ["--token", TOKEN]],
)
def test_options_that_contradict_each_other_are_refused(arguments: list[str]) -> None:
    assert main(["queues", *arguments]) == 2


def test_nothing_that_answers_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    """With a word on how to start the local platform, or to name an app."""
    port = free_port()

    assert main(["runs", "--url", f"http://127.0.0.1:{port}"]) == 3
    assert "Start the local platform" not in capsys.readouterr().err
    assert main(["runs", "--console", f"http://127.0.0.1:{port}"]) == 3
    error = capsys.readouterr().err
    assert "Start the local platform in another terminal: rollforward run." in error


def test_another_server_at_the_consoles_address_is_no_console(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.body = b"hello"

    assert main(["runs", "--console", server.url]) == 5
    assert "is no console of the local platform" in capsys.readouterr().err


def test_what_tasks_hold_cannot_move_the_cursor_of_a_terminal() -> None:
    """Names and reasons are others' input."""
    text = table(["A", "B"], [["x" * 100, "y\x1b]0;evil\x07\u202e" + "y" * 200]])

    head, row = text.splitlines()
    assert head.split() == ["A", "B"]
    assert row == "x" * 59 + "…  y?]0;evil??" + "y" * 200
