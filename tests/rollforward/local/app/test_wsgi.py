"""The page that stands in for an app that cannot be loaded."""

import sys

import pytest

from rollforward.cloud_profile import BUNDLED
from rollforward.cloud_profile.instances import ColdStart
from rollforward.local.app import wsgi
from rollforward.local.app.load_reports import LoadReports
from rollforward.local.app.wsgi import (
    BROKEN,
    FIRST_LINE,
    LAST_LINE,
    LOADED,
    PROBLEM_HEADER,
    ErrorPage,
)

DEEP = """
def down(depth):
    if depth:
        down(depth - 1)
    else:
        undefined

def serve():
    down(40)
"""


def answer(page, method="GET", host="127.0.0.1:8080"):
    """Return status, headers and body of one request."""
    seen = {}

    def start_response(status, headers):
        seen.update(status=status, headers=dict(headers))

    body = b"".join(page({"REQUEST_METHOD": method, "HTTP_HOST": host}, start_response))
    return seen["status"], seen["headers"], body.decode()


@pytest.fixture
def load(tmp_path, monkeypatch, capfd):
    """A way to load a module of this text, and what was reported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def load_text(text, target="broken_shop:serve"):
        (tmp_path / "broken_shop.py").write_text(text)
        sys.modules.pop("broken_shop", None)
        return wsgi.load(target), capfd.readouterr().err.splitlines()

    yield load_text
    sys.modules.pop("broken_shop", None)


def test_a_long_way_to_an_error_is_cut_to_its_first_step_and_its_last_two(load):
    """Ten lines in all: the error, the app's own steps, and what happens next."""
    page, reported = load(DEEP)

    assert page.summary.startswith("broken_shop.py, line 6: NameError: name 'undefined'")
    assert [line.strip() for line in page.lines] == [
        *("broken_shop.py, line 9, in serve", "down(40)"),
        *("broken_shop.py, line 4, in down", "down(depth - 1)"),
        *("broken_shop.py, line 6, in down", "undefined"),
    ]
    assert reported == [FIRST_LINE + page.summary, *page.lines, LAST_LINE]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("raise ValueError('1\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n9\\n10')", "7"),
        (
            "try:\n    1 / 0\nexcept Exception as e:\n    raise OSError('x') from e",
            "division by zero",
        ),
    ],
    ids=["long", "chained"],
)
def test_a_report_has_ten_lines_at_most(load, text, last):
    """Whatever an error says, and whatever it came from."""
    page, reported = load(text)

    assert len(reported) <= 10
    assert reported[-2].endswith(last)
    assert reported == [FIRST_LINE + page.summary, *page.lines, LAST_LINE]


def test_to_an_app_in_its_own_folder_this_repository_is_a_library(load):
    """The mistake is shown where the person made it, and not where it was noticed."""
    page, _ = load("from rollforward.registry import Registry\nRegistry('nonsense')\n")

    assert page.summary.startswith("broken_shop.py, line 2: TypeError: 'nonsense' cannot be")
    assert [line.strip() for line in page.lines] == [
        *("broken_shop.py, line 2, in <module>", "Registry('nonsense')"),
    ]


def test_a_syntax_error_names_file_and_line(load):
    """What is wrong is said so that an editor can jump to it."""
    page, _ = load("ok = 1\nok ok\n")

    assert page.summary == "broken_shop.py, line 2: SyntaxError: invalid syntax"
    assert any("ok ok" in line for line in page.lines)


def test_what_led_to_the_apps_own_code_is_left_out(load):
    """The frames of the platform and of Python's import say nothing to a person."""
    page, _ = load("import fractions\nfractions.Fraction('x')\n")

    assert page.summary.startswith("broken_shop.py, line 2: ValueError: Invalid literal")
    assert "broken_shop.py" in page.lines[0]
    assert not any("wsgi.py" in line or "importlib" in line for line in page.lines)


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        ("", "broken_shop:serve", "There is no 'serve' in"),
        ("serve = 'x'", "broken_shop:serve", "name a function that returns the app"),
        ("def serve(): pass", "broken_shop:serve", "it must return the Flask app"),
        ("def serve(config): pass", "broken_shop:serve", "takes arguments: name the Flask app"),
        (
            "from flask import Flask\n"
            "from werkzeug.middleware.proxy_fix import ProxyFix\n"
            "serve = ProxyFix(Flask('shop'))\n",
            "broken_shop:serve",
            "Middleware goes around its wsgi_app: ",
        ),
    ],
)
def test_a_target_that_is_no_app_is_told_from_one_that_fails(load, text, target, said):
    """Naming the wrong thing is a mistake of the command line, not of the app."""
    page, _ = load(text, target)

    assert page.kind == wsgi.WRONG
    assert said in page.summary


def test_every_request_is_answered_with_500_and_the_escaped_reason():
    """A browser shows it, a queue tries again, and nothing of it is markup."""
    page = ErrorPage(BROKEN, "shop.py, line 1: <b>", ["<script>"])

    status, headers, body = answer(page)

    assert status.startswith("500")
    assert headers[PROBLEM_HEADER] == "broken shop.py%2C%20line%201%3A%20%3Cb%3E"
    assert "&lt;script&gt;" in body
    assert "<script>" not in body
    assert answer(page, "HEAD")[2] == ""


@pytest.mark.parametrize("host", ["evil.example:8080", "evil.example", "", "127.0.0.1.evil:80"])
def test_a_page_of_another_site_reads_nothing_of_the_code(host):
    """A name that was made to point here is not this machine's."""
    page = ErrorPage(BROKEN, "shop.py, line 1", ["secret"])

    _, headers, body = answer(page, host=host)

    assert "secret" not in body
    assert "shop.py" not in body + repr(headers)


def test_a_report_is_shown_once_however_many_workers_make_it():
    """Each worker fails in the same way; after a reload the same report is news again."""
    shown: list[str] = []
    reports = LoadReports(shown.append)
    report = [f"{FIRST_LINE}x", "  File", LAST_LINE]

    for line in ["before", *report, "between", *report]:
        reports.take(line)
    assert shown == ["before", *report, "between"]
    assert reports.latest == "x"

    reports.take(LOADED)
    assert reports.latest == ""
    reports.reloading()
    for line in report:
        reports.take(line)
    assert shown == ["before", *report, "between", LOADED, *report]


def test_a_profile_puts_the_app_behind_the_start_of_an_instance(load, monkeypatch):
    """Without one it is the app itself."""
    text = "def serve():\n    return lambda environ, start_response: []\n"
    plain, _ = load(text)
    monkeypatch.setenv("CLOUD_PROFILE", str(BUNDLED))
    cold, _ = load(text)

    assert not isinstance(plain, ColdStart)
    assert isinstance(cold, ColdStart)
