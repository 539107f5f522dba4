"""Setup of logging, each time in a process of its own, as a worker does it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

SETUP = """
import logging, sys, threading
from rollforward.telemetry import CloudLogFormatter, logs
def install(log_format="json"):
    logs.install(log_format, "INFO", CloudLogFormatter("my-project"))
log = logging.getLogger("shop")
"""


def errors_of(script: str) -> list[str]:
    """Run a script behind SETUP and return the lines that it writes as errors."""
    run = subprocess.run(
        [sys.executable, "-c", SETUP + script], capture_output=True, text=True, check=False
    )
    return run.stderr.splitlines()


def entries_of(script: str) -> list[Any]:
    """Return its lines as entries."""
    return [json.loads(line) for line in errors_of(script)]


def test_a_deployed_app_writes_entries() -> None:
    """The library's, the app's own and those of other libraries."""
    entries = entries_of(
        "install()\n"
        "log.info('shipped'); log.debug('not this'); logging.getLogger('other').warning('w')"
    )

    assert [(entry["severity"], entry["message"]) for entry in entries] == [
        ("INFO", "shipped"),
        ("WARNING", "w"),
    ]


def test_what_ends_a_thread_or_the_process_is_one_entry_each() -> None:
    """Python prints a line an entry, without a severity."""
    entries = entries_of(
        "install()\n"
        "def fail(): raise KeyError('in a thread')\n"
        "thread = threading.Thread(target=fail, name='worker'); thread.start(); thread.join()\n"
        "raise ValueError('at the end')\n"
    )

    assert [(entry["severity"], entry["message"]) for entry in entries] == [
        ("ERROR", "thread worker ends: KeyError"),
        ("CRITICAL", "the process ends: ValueError"),
    ]
    assert all("Traceback" in entry["stack_trace"] for entry in entries)


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_handlers_of_the_app_are_left_alone(log_format: str) -> None:
    """Who has set up logging before has what is there: format, level and hooks."""
    lines = errors_of(
        "logging.basicConfig(format='mine: %(message)s', level='ERROR')\n"
        f"install('{log_format}'); log.error('e'); log.info('not this')\n"
        "assert sys.excepthook is sys.__excepthook__"
    )

    assert lines == ["mine: e"]


def test_logging_can_be_left_to_the_app() -> None:
    """It may set it up later."""
    assert errors_of("install('off'); assert not logging.getLogger().handlers") == []


def test_a_laptop_writes_text() -> None:
    """For people."""
    assert errors_of("install('text'); log.warning('slow')") == ["WARNING shop: slow"]


def test_what_gunicorn_says_in_a_worker_is_an_entry() -> None:
    """It has a handler of its own, and passes nothing on."""
    [entry] = entries_of(
        "from gunicorn.config import Config; from gunicorn.glogging import Logger\n"
        "gunicorn = Logger(Config())\n"
        "install(); gunicorn.error('Worker exiting')"
    )

    assert (entry["severity"], entry["message"]) == ("ERROR", "Worker exiting")


def test_a_formatter_serves_a_configuration_of_one_s_own() -> None:
    """As docs/operations.md shows it."""
    [entry] = entries_of(
        "import logging.config\n"
        "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': False,\n"
        "  'formatters': {'cloud': {'()': 'rollforward.telemetry.CloudLogFormatter',\n"
        "                           'project': 'my-project'}},\n"
        "  'handlers': {'err': {'class': 'logging.StreamHandler', 'formatter': 'cloud'}},\n"
        "  'root': {'handlers': ['err'], 'level': 'INFO'}})\n"
        "install(); log.info('mine')"
    )

    assert (entry["severity"], entry["message"]) == ("INFO", "mine")
