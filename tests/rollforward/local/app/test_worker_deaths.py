"""What gunicorn prints when workers end, cut to what is new in it."""

import pytest

from rollforward.local.app.worker_deaths import WorkerDeaths
from rollforward.local.app.wsgi import LOADED

pytestmark = pytest.mark.fast

DEATH = "[2030-01-01 00:00:00 +0000] [1] [ERROR] Worker (pid:{pid}) exited with code 1."
OF_GUNICORN = [
    "Traceback (most recent call last):",
    '  File "/lib/site-packages/gunicorn/arbiter.py", line 270, in run',
    "    handler()",
    "gunicorn.errors.HaltServer: <HaltServer 'Worker failed to boot.' 3>",
]
OF_THE_APP = [
    "Traceback (most recent call last):",
    '  File "/lib/site-packages/gunicorn/workers/gthread.py", line 9, in handle',
    '  File "/home/me/shop.py", line 3, in show',
    "    1 / 0",
    "ZeroDivisionError: division by zero",
]
BETWEEN = ["", "During handling of the above exception, another exception occurred:", ""]


def shown(lines):
    """Return what is handed on of some lines."""
    found = []
    deaths = WorkerDeaths(found.append)
    for line in lines:
        deaths.take(line)
    return found


def deaths_of(count):
    return [DEATH.format(pid=pid) for pid in range(count)]


def test_workers_that_end_one_after_the_other_are_said_in_three_lines():
    """The first two, and that each does; a load or a reload makes the next one news."""
    many = deaths_of(40)

    said = shown([*many, LOADED, many[0], "other"])

    assert said[:2] == many[:2]
    assert said[2] == "ERROR each worker ends while it loads the app: exited with code 1"
    assert said[3:] == [LOADED, many[0], "other"]


def test_a_reload_counts_anew():
    """What was saved may be the fix."""
    found = []
    deaths = WorkerDeaths(found.append)
    for line in deaths_of(9):
        deaths.take(line)

    deaths.reloading()
    deaths.take(DEATH.format(pid=9))

    assert found[3:] == [DEATH.format(pid=9)]
    assert (deaths.since_load, deaths.first) == (1, "exited with code 1")


def test_the_reason_is_the_first_workers_end():
    """gunicorn ends the others when one cannot load the app."""
    deaths = WorkerDeaths([].append)

    deaths.take(DEATH.format(pid=1))
    deaths.take("[2026] [9] [ERROR] Worker (pid:2) was sent SIGTERM!")

    assert (deaths.since_load, deaths.first) == (2, "exited with code 1")


def test_the_end_of_gunicorn_itself_says_nothing_to_a_person():
    """Its tracebacks are left out, and what Python writes between them."""
    assert shown(["one", *OF_GUNICORN, *BETWEEN, *OF_GUNICORN, "two"]) == ["one", "two"]


def test_a_traceback_of_the_app_is_shown_whole():
    """Whatever led to it, and its chain."""
    lines = [*OF_THE_APP, *BETWEEN, *OF_THE_APP, "", "after"]

    assert shown(lines) == lines
