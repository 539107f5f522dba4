"""What of the services' output is worth showing."""

import io

import pytest

from rollforward.local.logs.tail import LogFilter
from rollforward.local.logs.terminal import LevelFilter, Terminal
from rollforward.local.stack import _reporter

TRACEBACK = [
    "[2026-11-20 12:00:00 +0000] [7] [ERROR] Exception in worker process",
    "Traceback (most recent call last):",
    '  File "main.py", line 1, in <module>',
    "ValueError: no",
]


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["[2026-11-20 12:00:00 +0000] [7] [INFO] Listening at: http://x"], 0),
        (TRACEBACK, 4),
        ([*TRACEBACK, "INFO main: next request", "  its second line"], 4),
        (['{"severity": "INFO", "message": "ERROR is only a word here"}'], 0),
        (['{"severity": "WARNING", "message": "x"}'], 1),
        (["WARNING handlers: slow", "INFO handlers: fast"], 1),
        (["SEVERE: cannot bind"], 1),
        (["WARNING: Failed to complete operation", "io.netty.ClosedChannelException"], 0),
        (
            [
                "WARNING: Operation failed: Transaction lock timeout.",
                "\tat com.google.X.a(X.java:7)",
            ],
            0,
        ),
        (["WARNING: The clock stands still", "\tat google.X(X.java:7)"], 1),
        (["API endpoint: http://127.0.0.1:8081"], 0),
        (["{not json", "WARNINGS_TOTAL 5"], 0),
    ],
)
def test_warnings_and_what_belongs_to_them_are_shown(lines, shown):
    """A traceback goes with its error, a warning is one line; chatter stays in the log file."""
    loud = LevelFilter()

    assert sum(loud.is_visible(line) for line in lines) == shown


def test_what_the_app_prints_is_shown_and_its_chatter_is_not():
    """Who writes print() looks for it in the terminal."""
    stream = io.StringIO()
    sink = Terminal(stream).sink("app")

    for line in ("INFO flask: a request", "Hello, world! [task default/1]", *TRACEBACK):
        sink(line)

    assert stream.getvalue().splitlines()[0] == "app        Hello, world! [task default/1]"
    assert len(stream.getvalue().splitlines()) == 1 + len(TRACEBACK)


def test_lines_carry_the_name_of_their_service():
    """One stream, many services: each line says whose it is."""
    stream = io.StringIO()
    terminal = Terminal(stream)

    terminal.sink("app")("WARNING x")
    terminal.sink("mail")("INFO quiet")

    assert stream.getvalue() == "app        WARNING x\n"


def test_verbose_shows_everything():
    """On request nothing is left out."""
    stream = io.StringIO()

    Terminal(stream, verbose=True).sink("mail")("INFO quiet")

    assert "quiet" in stream.getvalue()


CHAINED = ["", "The above exception was the direct cause of the following exception:", ""]
QUIET = [
    "INFO rollforward.streams.workers.lease: hits/0 is not released yet",
    *TRACEBACK[1:],
    *CHAINED,
    *TRACEBACK[1:],
    *CHAINED,
    *TRACEBACK[1:],
    "WARNING rollforward.any: a call failed: <_InactiveRpcError of RPC that terminated with:",
    "\tstatus = StatusCode.INTERNAL",
    '\tdetails = "no"',
    ">",
    "INFO shop: a request",
    *TRACEBACK[1:],
]


def test_a_handled_error_of_the_library_is_one_line_or_none_and_one_of_the_app_is_whole():
    """The traceback of a note is on the page Logs; what the app prints after its note is shown."""
    stream = io.StringIO()
    sink = Terminal(stream).sink("app")

    for line in QUIET:
        sink(line)

    lines = [line.removeprefix("app        ") for line in stream.getvalue().splitlines()]
    assert lines[0].startswith("WARNING rollforward.any: a call failed")
    assert lines[1:] == TRACEBACK[1:]


def test_a_worker_that_was_killed_on_request_has_not_run_out_of_memory():
    """gunicorn suspects that of every worker that gets a SIGKILL."""
    stream = io.StringIO()
    terminal = Terminal(stream)
    suspected = "[2026-11-26 22:46:25 +0000] [1] [ERROR] Worker (pid:7) was sent SIGKILL! Perhaps"

    terminal.say_killed(7)
    terminal.sink("app")(suspected)
    terminal.sink("app")(suspected.replace(":7)", ":8)"))

    assert [line.count("pid:8") for line in stream.getvalue().splitlines()] == [0, 1]


def test_what_the_platform_says_hundreds_of_times_is_shown_three_times_and_kept():
    """A fault rule kills a worker every half minute; the page Logs has each."""
    stream = io.StringIO()
    terminal = Terminal(stream)

    for pid in range(100):
        terminal.say_killed(pid)

    assert stream.getvalue().splitlines() == [
        f"app        worker {pid} killed on request: another one starts → nothing to do{so_far}"
        for pid, so_far in ((0, ""), (9, " (10 times so far)"), (99, " (100 times so far)"))
    ]
    assert len(terminal.tail.newest(LogFilter(service="app"), 200)) == 100


def test_the_last_line_about_a_service_is_how_it_is():
    """However often it has fallen silent before, and however long it stays so."""
    stream = io.StringIO()
    say = _reporter(Terminal(stream))

    for _ in range(3):
        say("Datastore", "has not answered for 10 s.")
        assert stream.getvalue().splitlines()[-1].endswith("has not answered for 10 s.")
        say("Datastore", "answers again, after 60 s → nothing to do")
        assert stream.getvalue().splitlines()[-1].endswith("after 60 s → nothing to do")
