"""The app's gunicorn: kept running, reloaded on save, killed on request."""

import asyncio
import os

import psutil
import pytest

from devserver import ports
from devserver.app import AppKeeper, AppServer, syntax_fault
from devserver.errors import ServiceFailedError
from tests.devserver.conftest import ask, eventually, is_gone

pytestmark = pytest.mark.process


@pytest.fixture
def app(app_folder, loop_thread):
    """A running app with two workers."""
    server = AppServer(app_folder, port=ports.free_port(), env=dict(os.environ))
    loop_thread.run(server.start())
    both_have_loaded(server)
    yield server
    loop_thread.run(server.stop())


def both_have_loaded(server):
    """Wait until each of the two workers has answered.

    One that loads a broken file while it boots ends gunicorn, whatever the other has.
    """
    seen = set()

    def both():
        seen.add(ask(server.address, "GET", "/worker").text)
        return len(seen) == 2

    eventually(both, "an answer of each worker")


@pytest.fixture
def reports():
    """What the keeper told the person at the terminal."""
    return []


@pytest.fixture
def keeper(app, loop_thread, reports):
    """A keeper at work, watching the files."""

    async def start():
        kept = AppKeeper(app, reports.append, reload=True)
        kept.start()
        return kept

    kept = loop_thread.run(start())
    yield kept
    loop_thread.run(kept.stop())


def home(app):
    """Return the home page's text, "" while nobody answers."""
    try:
        return ask(app.address, "GET", "/").text
    except OSError:
        return ""


def test_a_killed_worker_is_replaced_and_the_app_answers(app):
    """SIGKILL of a worker loses its requests, not the app."""
    eventually(lambda: len(app.workers()) == 2, "two workers")

    workers = {pid: psutil.Process(pid) for pid in app.workers()}

    victim = workers[app.kill_worker()]  # Known before: it may be gone at once.

    eventually(lambda: is_gone(victim), "the worker has ended")
    eventually(lambda: len(app.workers()) == 2, "another worker")
    assert home(app) == "one"


def test_a_saved_file_is_served_without_a_restart(app, keeper, app_folder):
    """The master stays, its workers are new, the page is the saved one."""
    master = app.process.process().pid
    main = app_folder / "main.py"

    main.write_text(main.read_text().replace('"one"', '"two"'))

    eventually(lambda: home(app) == "two", "the saved page")
    assert app.process.process().pid == master


def test_a_file_with_a_syntax_error_is_reported_and_not_loaded(app, keeper, app_folder, reports):
    """The app goes on with the code it has."""
    main = app_folder / "main.py"
    good = main.read_text()

    main.write_text(good + "\ndef broken(:\n")
    eventually(lambda: any("not reloaded" in line for line in reports), "the report")

    eventually(lambda: home(app) == "one", "the page as it was")
    main.write_text(good.replace('"one"', '"mended"'))
    eventually(lambda: home(app) == "mended", "the mended page")


def test_an_app_that_ends_is_started_again(app, keeper, reports):
    """If gunicorn itself dies, it comes back."""
    app.process.process().kill()

    eventually(lambda: app.restarts > 0, "a restart")
    eventually(lambda: home(app) == "one", "the app is back")
    assert any("the app ended" in line for line in reports)


def test_an_app_that_cannot_start_says_why(app_folder, loop_thread):
    """The reason is the last line of the traceback, not the whole of it."""
    (app_folder / "main.py").write_text("raise ValueError('no settings')\n")
    server = AppServer(app_folder, port=ports.free_port(), env=dict(os.environ))

    with pytest.raises(ServiceFailedError, match="ValueError: no settings"):
        loop_thread.run(server.start())

    loop_thread.run(server.stop())


def test_an_app_that_stands_still_goes_on_afterwards(app):
    """Master and workers are suspended meanwhile, and answer again."""
    everybody = [app.process.process(), *map(psutil.Process, app.workers())]

    with app.standing_still():
        still = [process.status() for process in everybody]

    assert still == [psutil.STATUS_STOPPED] * 3
    assert home(app) == "one"


def test_an_app_that_is_stopped_while_it_stands_still_ends(app, loop_thread):
    """Nobody has to wake it first, and nobody waits for its grace."""
    everybody = [app.process.process(), *map(psutil.Process, app.workers())]

    with app.standing_still():
        loop_thread.run(app.stop())

    assert all(map(is_gone, everybody))


def test_no_worker_no_kill(app_folder):
    """An app that does not run has nothing to kill."""
    server = AppServer(app_folder, port=1, env={})

    assert server.kill_worker() is None
    assert not server.running


def test_syntax_faults_name_file_and_line(tmp_path):
    """What is wrong is said so that an editor can jump to it."""
    path = tmp_path / "broken.py"
    path.write_text("ok = 1\nok ok\n")

    assert syntax_fault(path).startswith("broken.py:2: ")
    assert syntax_fault(tmp_path / "deleted.py") is None


def test_the_keeper_can_be_stopped_at_any_time(app, reports):
    """Stopping does not wait for a file to change."""

    async def cycle():
        kept = AppKeeper(app, reports.append, reload=True)
        kept.start()
        await kept.stop()

    asyncio.run(cycle())
