"""Repeated records in the terminal: few lines a kind, each with what to do."""

from __future__ import annotations

import io
import itertools
import random

import pytest

from rollforward.local.logs.repeats import PAUSE_S, UNSHOWN_S, Repeats, with_hint
from rollforward.local.logs.terminal import Terminal
from tests.rollforward.local.logs.test_terminal import TRACEBACK

pytestmark = pytest.mark.fast

SCREEN_LINES = 50
# One record of each kind that 45 minutes of load under faults have written.
HANDLED = (
    "WARNING rollforward.runtime.process.heartbeats: a heartbeat failed; the next one comes: 504",
    "WARNING rollforward.runtime.cache: memcached is away; this process goes on without it: 9",
    "WARNING rollforward.runtime.cache: memcached answers again",
    "WARNING rollforward.runtime.process.open_transactions: 7 transactions of a killed process",
    "WARNING rollforward.flows.steps.calls: orders|7: the step charge may have taken effect",
    "WARNING rollforward.fork_join.pattern: woke 7 batches, 7 partitions to walk",
    "WARNING rollforward.outbox.pattern: relayed 7 rows, 7 partitions to walk",
    "WARNING rollforward.lanes.rows.states: a delivery of tenants|7.E died over its work",
    "WARNING rollforward.continuations.pattern: woke 7 pages",
    "WARNING rollforward.flask.endpoints.tasks: /tasks/x: a service is unavailable: 503",
)


def test_a_long_load_prints_a_screen_and_each_line_says_what_to_do() -> None:
    """Ten kinds of handled errors, three thousand records with other numbers and tasks."""
    stream = io.StringIO()
    sink = Terminal(stream).sink("app")
    dice = random.Random(7)

    for _ in range(300):
        for line in HANDLED:
            sink(f"{line.replace('7', str(dice.randrange(10**6)))} [task q/{dice.randrange(9)}]")

    lines = stream.getvalue().splitlines()
    assert len(lines) <= SCREEN_LINES
    lasting = [line for line in lines if "(10 times so far)" in line]
    assert len(lines) == 2 * len(HANDLED) + len(lasting)
    assert len(lasting) == 3
    assert all("→ nothing to do" in line for line in lines)
    assert sum("(100 times so far)" in line for line in lines) == len(HANDLED)


def test_a_cause_is_one_line_whatever_the_task_that_met_it() -> None:
    """A connection that breaks fails deliveries of every pattern at once."""
    repeats = Repeats()
    paths = ("streams/weblog/tick", "fork-join/sums/join", "lanes/tenants", "flows/orders")
    met = "503 Stream removed (Socket closed)"
    head = "WARNING rollforward.flask.endpoints.tasks:"

    lines = [f"{head} /tasks/{path}: a service is unavailable: {met}" for path in paths]

    assert [repeats.filter_line(line) is not None for line in lines] == [True, False, False, False]


def test_hot_keys_are_one_line_that_names_what_to_do() -> None:
    """Keys of one pipeline differ in their quoted names; a pipeline that keeps up needs nothing."""
    repeats = Repeats()
    head = "WARNING rollforward.streams.driver: weblog:"
    rest = "one worker at a time processes a key: aggregate its records in parts first (hot_keys)"

    first, second = (
        repeats.filter_line(f"{head} {key} is 50% of {computation}, and {rest}")
        for key, computation in (("'visits.1'", "board"), ("'4'", "errors-by-shard"))
    )

    assert first is not None
    assert first.endswith("(hot_keys) → if the pipeline lags, do so")
    assert second is None


DEATH = "[2026-11-27 21:42:42 +0000] [1] [ERROR] Worker (pid:7) was sent SIGKILL!"


@pytest.mark.parametrize("line", [DEATH, HANDLED[1], HANDLED[-1], "WARNING shop: slow"])
def test_what_lasts_is_shown_every_ten_minutes(line: str) -> None:
    """Advice that begins with "if it lasts" is for those who see that it does."""
    now = [0.0]
    repeats = Repeats(lambda: now[0])
    shown_at = []
    for minute in range(46):
        now[0] = 60.0 * minute
        if repeats.filter_line(line) is not None:
            shown_at.append(now[0])

    gaps = [after - before for before, after in itertools.pairwise([*shown_at, now[0]])]
    assert max(gaps) <= UNSHOWN_S + 60
    assert len(shown_at) <= 6
    now[0] += 7200
    assert repeats.filter_line(line) is not None


def test_workers_that_crash_are_not_said_to_lack_memory() -> None:
    """SIGSEGV comes of native code, and "nothing to do" would be false."""
    crash = DEATH.replace("SIGKILL", "SIGSEGV")
    repeats = Repeats()

    assert repeats.filter_line(DEATH) != DEATH
    assert repeats.filter_line(crash) == crash


AWAY = "WARNING rollforward.flask.endpoints.tasks: /tasks/{}: a service is unavailable: {}"
TASKS = "rollforward.flask.endpoints.tasks"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"ERROR {TASKS}: dead-lettered '/tasks/a': no", f"ERROR {TASKS}: dead-lettered '/b': no"),
        (
            f"ERROR {TASKS}: dead-lettered '/tasks/a': KeyError: 'price'",
            f"ERROR {TASKS}: dead-lettered '/tasks/a': KeyError: 'address'",
        ),
        (
            f"WARNING {TASKS}: '/tasks/a' waits for another version: it has no such task",
            f"WARNING {TASKS}: '/tasks/b' waits for another version: it has no such task",
        ),
        (
            "WARNING rollforward.flask.guards.auth: refused POST '/tasks/a': 'no token'",
            "WARNING rollforward.flask.guards.auth: refused POST '/admin': 'no token'",
        ),
        (
            f"WARNING {TASKS}: /tasks/a: its arguments cannot be read: 503 Socket closed",
            f"WARNING {TASKS}: /tasks/b: its arguments cannot be read: 503 Socket closed",
        ),
        (
            f"WARNING {TASKS}: /tasks/a: its arguments cannot be read: 503 Socket closed",
            f"WARNING {TASKS}: /tasks/a: its arguments cannot be read: 504 Deadline exceeded",
        ),
        (AWAY.format("a", "503 Socket closed"), AWAY.format("a", "504 Deadline exceeded")),
        ("WARNING shop: setting 'STRIPE_KEY' is missing", "WARNING shop: setting 'A' is missing"),
        ("ERROR shop: KeyError: 'price'", "ERROR shop: KeyError: 'address'"),
        ("ERROR shop: the order failed: KeyError: 'a'", "ERROR shop: the order failed: OSError"),
        ("WARNING shop: can't pay, don't ship", "WARNING shop: can't pack, don't ship"),
        ("WARNING shop: /orders: full", "WARNING shop: /returns: full"),
        (DEATH, DEATH.replace("SIGKILL", "SIGABRT")),
    ],
)
def test_no_path_or_cause_hides_behind_another(before: str, after: str) -> None:
    """Each calls for something else to be done."""
    repeats = Repeats()

    shown = [
        repeats.filter_line(line) is not None for line in (before, before, after, before, after)
    ]

    assert shown == [True, False, True, False, False]


def test_a_cause_of_what_never_needs_action_is_no_line_of_its_own() -> None:
    """A load under faults meets many, and the first line has said that it is handled."""
    repeats = Repeats()
    head = "WARNING rollforward.runtime.process.heartbeats: a heartbeat failed; the next one comes:"

    assert repeats.filter_line(f"{head} 503 Stream removed (Socket closed)") is not None
    assert repeats.filter_line(f"{head} 504 Deadline Exceeded") is None


def test_memcached_is_not_said_to_be_away_when_it_is_back() -> None:
    """Each line that says so has one behind it that says that it answers again."""
    repeats = Repeats(lambda: 0.0)
    away, back = HANDLED[1:3]
    states = []
    for _ in range(12):
        # Several processes notice each.
        shown = [repeats.filter_line(line) for line in (away, away, away, back, back)]
        states += [line.split()[3] for line in shown if line]
        assert states[-1] == "answers"

    assert states == ["is", "answers"] * 2


def test_an_error_with_another_cause_keeps_its_traceback() -> None:
    """It comes at once behind one that the app has logged with another message."""
    repeats = Repeats()
    head = "ERROR shop: KeyError: '{}'"
    first, second = ([head.format(key), *TRACEBACK[1:]] for key in ("price", "address"))

    assert [repeats.filter_line(line) for line in [*first, *second]] == [*first, *second]


def test_what_the_platform_says_is_shown_again_after_a_calm_time() -> None:
    """A service that hangs once more an hour later is news; what comes every minute is none."""
    now = [0.0]
    repeats = Repeats(lambda: now[0])

    def filter_line() -> bool:
        return repeats.filter_note(f"App has not answered for {now[0]:.0f} s") is not None

    first = [filter_line() for _ in range(10)]
    now[0] = UNSHOWN_S + 1

    assert first == [True, *[False] * 8, True]
    assert [filter_line(), filter_line()] == [True, False]


def test_a_repeated_error_keeps_its_traceback_to_the_log_and_comes_again_after_a_pause() -> None:
    """The second time in a row it is hidden whole; prints in between are shown."""
    now = [0.0]
    repeats = Repeats(lambda: now[0])
    lines = [*TRACEBACK, *TRACEBACK, "Hello"]

    assert [repeats.filter_line(line) for line in lines] == [
        *TRACEBACK,
        None,
        None,
        None,
        None,
        "Hello",
    ]
    now[0] = PAUSE_S + 1
    assert [repeats.filter_line(line) for line in TRACEBACK] == [
        f"{TRACEBACK[0]} (3 times so far)",
        *TRACEBACK[1:],
    ]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("ERROR rollforward.flask.endpoints.tasks: dead-lettered '/tasks/x': no", "or delete it"),
        ("ERROR rollforward.flask.endpoints.tasks: gave up '/tasks/batches/a/b': no", "at the run"),
        (
            "ERROR rollforward.flask.endpoints.tasks: gave up '/tasks/batches/a/completed': no",
            "dead",
        ),
        ("ERROR rollforward.continuations.sweep: run a is of job b, which is not known", "add the"),
        ("ERROR rollforward.any: something", "page Logs"),
        (
            "WARNING rollforward.streams.driver: log does not process hits here: version 1",
            "bring that code back, or replace or detach it",
        ),
        ("WARNING rollforward.any: something", "nothing to do"),
        ("WARNING rollforward.a: '/tasks/x' waits for another version: none", "keeps its path"),
        ("[2026-11-27 21:42:42 +0000] [1] [ERROR] Worker (pid:7) was sent SIGKILL!", "free memory"),
        (
            "ERROR each worker ends while it loads the app: exited with code 1",
            "mend what ends them",
        ),
        ("WARNING rollforward.flask.guards.auth: refused POST '/tasks/x'", "through its queue"),
        ("WARNING rollforward.flask.guards.auth: refused GET '/metrics': 'no token'", "a token of"),
    ],
)
def test_a_line_of_the_library_says_what_to_do(line: str, advice: str) -> None:
    """Before the task that it is about, which the page Logs reads."""
    assert advice in with_hint(line)
    assert with_hint(f"{line} [task q/1]").endswith(" [task q/1]")


def test_lines_of_the_app_stay_as_they_are() -> None:
    """What to do about them only its developer knows."""
    assert with_hint("WARNING shop: slow") == "WARNING shop: slow"
    assert with_hint("Hello") == "Hello"
