"""The app's gunicorn: kept running, reloaded on save, killed on request."""

import asyncio
import html
import os
import sqlite3

import psutil
import pytest
import watchfiles

from rollforward.local.app.keeper import AppKeeper
from rollforward.local.app.load_reports import LoadReports
from rollforward.local.app.server import AppServer
from rollforward.local.app.wsgi import FIRST_LINE, LAST_LINE, LOADED
from rollforward.local.errors import BrokenAppError, ServiceFailedError, UsageError
from rollforward.local.logs.terminal import LevelFilter
from rollforward.local.system import ports
from tests.rollforward.local.conftest import ask, eventually, is_gone

pytestmark = pytest.mark.process


@pytest.fixture
def lines():
    """What the app printed, as it is handed to the terminal."""
    return []


@pytest.fixture
def app(app_folder, loop_thread, lines):
    """A running app with two workers."""
    server = AppServer(
        app_folder, port=ports.free_port(), env=dict(os.environ), on_line=lines.append
    )
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


def ask_twice(app, reason):
    """Return of a few answers whether each holds the reason."""
    return [reason in html.unescape(home(app)) for _ in range(6)]


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


def test_workers_are_added_and_taken_away_until_a_reload(app, loop_thread):
    """One more starts; one too many ends its requests and goes; a reload has the usual ones."""
    first = set(app.workers())

    loop_thread.run(app.resize(4))
    eventually(lambda: len(app.workers()) == 4, "two more workers")
    assert first < set(app.workers())
    loop_thread.run(app.resize(1))
    eventually(lambda: len(app.workers()) == 1, "one worker")
    assert home(app) == "one"

    app.reload()
    eventually(lambda: len(app.workers()) == 2, "the usual workers")
    for count in (0, 9):
        with pytest.raises(ValueError, match="1 to 8 workers"):
            loop_thread.run(app.resize(count))


def test_a_saved_file_is_served_without_a_restart(app, keeper, app_folder):
    """The master stays, its workers are new, the page is the saved one."""
    master = app.process.process().pid
    main = app_folder / "main.py"

    main.write_text(main.read_text().replace('"one"', '"two"'))

    eventually(lambda: home(app) == "two", "the saved page")
    assert app.process.process().pid == master


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def broken(:\n", "SyntaxError: invalid syntax"),
        ("import nowhere\n", "ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit('no key')\n", "SystemExit: no key"),
        ("serve = 3\n", "main:serve is 3: name a function that returns the app."),
    ],
)
def test_an_error_in_a_saved_file_is_shown_on_every_page_and_in_the_terminal(
    app, keeper, app_folder, lines, reports, code, reason
):
    """The app lives on with a page of the reason, shown once a reload, and loads the fixed file."""
    main = app_folder / "main.py"
    good = main.read_text()
    master = app.process.process().pid

    main.write_text(f"{good}\n{code}")

    eventually(lambda: reason in html.unescape(home(app)), "the page with the reason")
    eventually(lambda: all(ask_twice(app, reason)), "the page of both workers")
    broken = ask(app.address, "GET", "/worker")
    main.write_text(good.replace('"one"', '"fixed"'))
    eventually(lambda: home(app) == "fixed", "the fixed page")
    assert broken.status == 500
    assert "reload automatically" in broken.text
    reloads = sum(line.startswith("reload: ") for line in reports)
    shown = [line for line in lines if line.startswith(FIRST_LINE) and reason in line]
    assert 1 <= len(shown) <= reloads
    assert app.process.process().pid == master
    eventually(lambda: app.reports.latest == "", "the report is over")


def test_an_app_that_ends_is_started_again(app, keeper, reports):
    """If gunicorn itself dies, it comes back."""
    app.process.process().kill()

    eventually(lambda: app.restarts > 0, "a restart")
    eventually(lambda: home(app) == "one", "the app is back")
    assert any("the app ended" in line for line in reports)


def test_an_app_that_cannot_start_says_why(app_folder, loop_thread, lines):
    """The reason is file, line and error; the terminal has ten lines of it, once."""
    (app_folder / "main.py").write_text("raise ValueError('no settings')\n")
    server = AppServer(
        app_folder, port=ports.free_port(), env=dict(os.environ), on_line=lines.append
    )

    with pytest.raises(BrokenAppError, match=r"main\.py, line 1: ValueError: no settings"):
        loop_thread.run(server.start())

    eventually(lambda: LAST_LINE in lines, "the report")
    page = ask(server.address, "GET", "/any/page")
    loop_thread.run(server.stop())
    report = lines[lines.index(f"{FIRST_LINE}main.py, line 1: ValueError: no settings") :]
    assert page.status == 500
    assert "ValueError: no settings" in html.unescape(page.text)
    assert len(report[: report.index(LAST_LINE) + 1]) <= 10


@pytest.mark.parametrize(
    ("end", "how"),
    [("_exit(3)", "exited with code 3"), ("kill(os.getpid(), 9)", "was sent SIGKILL")],
    ids=["exit", "kill"],
)
def test_an_app_whose_workers_end_without_a_word_ends_the_start_in_ten_lines(
    app_folder, loop_thread, lines, end, how
):
    """gunicorn starts a worker after the other, or ends itself with a traceback of its own."""
    (app_folder / "main.py").write_text(f"import os\ndef serve():\n    os.{end}\n")
    server = AppServer(
        app_folder, port=ports.free_port(), env=dict(os.environ), on_line=lines.append
    )

    with pytest.raises(ServiceFailedError, match=f"does not start: its workers ended: {how}"):
        loop_thread.run(server.start())

    loop_thread.run(server.stop())
    shown = list(filter(LevelFilter().is_visible, lines))
    assert 2 <= len(shown) <= 10
    assert not any("gunicorn" in line for line in shown)


def test_a_warning_is_no_reason_why_an_app_ended(app_folder, loop_thread):
    """Its last line may be a record of what went on, as before a kill."""
    with (app_folder / "main.py").open("a") as main:
        main.write(
            "\nimport sys\nready = serve()\n\n@ready.after_request\ndef warn(response):\n"
            "    print('WARNING shop.stock: few books', file=sys.stderr, flush=True)\n"
            "    return response\n"
        )
    server = AppServer(
        app_folder, port=ports.free_port(), env=dict(os.environ), target="main:ready"
    )
    loop_thread.run(server.start())
    home(server)
    eventually(
        lambda: any("few books" in line for line in server.process.last_lines), "it has said it"
    )

    server.kill()

    reason = server.exit_reason
    loop_thread.run(server.stop())
    assert reason
    assert "few books" not in reason


def test_a_target_that_makes_no_app_is_a_mistake_of_the_caller(app_folder, loop_thread):
    """What is no app is not an app that fails: the sentence says what to name instead."""
    (app_folder / "main.py").write_text("def serve():\n    return None\n")
    server = AppServer(app_folder, port=ports.free_port(), env=dict(os.environ))

    with pytest.raises(UsageError, match="it must return the Flask app"):
        loop_thread.run(server.start())

    loop_thread.run(server.stop())


def test_an_app_that_is_made_already_is_served(app_folder, loop_thread):
    """`module:app` is as good as a function that returns it."""
    with (app_folder / "main.py").open("a") as main:
        main.write("\nready = serve()\n")
    server = AppServer(
        app_folder, port=ports.free_port(), env=dict(os.environ), target="main:ready"
    )

    loop_thread.run(server.start())

    text = home(server)
    loop_thread.run(server.stop())
    assert text == "one"


def test_a_folder_that_comes_while_the_app_runs_is_watched_too(app, keeper, app_folder):
    """Code in a package that was made a moment ago is reloaded as all other code is."""
    main = app_folder / "main.py"
    package = app_folder / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("TEXT = 'parts'\n")
    main.write_text("from parts import TEXT\n" + main.read_text().replace('"one"', "TEXT"))
    eventually(lambda: home(app) == "parts", "the page of the package")
    eventually(lambda: package in keeper._watched, "the package is watched")

    (package / "__init__.py").write_text("TEXT = 'more parts'\n")

    eventually(lambda: home(app) == "more parts", "the page of the changed package")


def test_an_app_that_stands_still_goes_on_afterwards(app):
    """Master and workers are suspended meanwhile, and answer again."""
    everybody = [app.process.process(), *map(psutil.Process, app.workers())]

    with app.paused():
        still = [process.status() for process in everybody]

    assert still == [psutil.STATUS_STOPPED] * 3
    assert home(app) == "one"


def test_an_app_that_is_stopped_while_it_stands_still_ends(app, loop_thread):
    """Nobody has to wake it first, and nobody waits for its grace."""
    everybody = [app.process.process(), *map(psutil.Process, app.workers())]

    with app.paused():
        loop_thread.run(app.stop())

    assert all(map(is_gone, everybody))


def test_no_worker_no_kill(app_folder):
    """An app that does not run has nothing to kill."""
    server = AppServer(app_folder, port=1, env={})

    assert server.kill_worker() is None
    assert not server.running


def test_the_keeper_can_be_stopped_at_any_time(app, reports):
    """Stopping does not wait for a file to change."""

    async def cycle():
        kept = AppKeeper(app, reports.append, reload=True)
        kept.start()
        await kept.stop()

    asyncio.run(cycle())


class CountedApp:
    """Counts how often it was asked to load itself again."""

    running = True

    def __init__(self, root):
        self.root = root
        self.reloads = 0
        self.reports = LoadReports(None)

    def reload(self):
        self.reloads += 1
        self.reports.reloading()


@pytest.mark.parametrize(
    ("saved", "is_applied", "reloads"),
    [
        ({"queue.yaml"}, True, 1),
        ({"queue.yaml"}, False, 0),
        ({"queue.yaml", "shop.py"}, True, 1),
        ({"queue.yaml", "shop.py"}, False, 1),
        ({"other.yaml"}, True, 0),
    ],
)
def test_a_queue_yaml_that_was_applied_loads_the_app_again_once(
    tmp_path, reports, saved, is_applied, reloads
):
    """The queues are there before the code that needs them; a wrong file changes nothing."""
    counted = CountedApp(tmp_path)
    keeper = AppKeeper(counted, reports.append, reload=True)
    seen = []
    keeper.on_file[tmp_path / "queue.yaml"] = lambda: seen.append(counted.reloads) or is_applied

    keeper._changed({tmp_path / name for name in saved})

    assert counted.reloads == reloads
    assert seen == ([0] if "queue.yaml" in saved else [])
    assert len(reports) == reloads


def test_an_error_of_one_save_does_not_end_the_watching(tmp_path, monkeypatch, reports):
    """As when the disk is full while queue.yaml is applied: nothing was loaded any more."""

    def fail():
        raise sqlite3.OperationalError("database or disk is full")

    async def saves(*folders, **options):
        for name in ("queue.yaml", "shop.py"):
            yield {(1, str(tmp_path / name))}

    monkeypatch.setattr(watchfiles, "awatch", saves)
    counted = CountedApp(tmp_path)
    keeper = AppKeeper(counted, reports.append, reload=True)
    keeper.on_file[tmp_path / "queue.yaml"] = fail

    asyncio.run(keeper._follow({tmp_path}, recursive=False))

    assert counted.reloads == 1


def test_files_that_cannot_be_watched_are_said(tmp_path, monkeypatch, reports):
    """Saves were not loaded, and nothing said so."""

    async def no_saves(*folders, **options):
        raise OSError("OS file watch limit reached")
        yield

    monkeypatch.setattr(watchfiles, "awatch", no_saves)
    keeper = AppKeeper(CountedApp(tmp_path), reports.append, reload=True)

    asyncio.run(keeper._follow({tmp_path}, recursive=True))

    assert f"saves in {tmp_path} are not seen: OS file watch limit reached" in reports[0]


@pytest.mark.parametrize("last_line", [LOADED, LAST_LINE])
def test_files_saved_while_the_app_loads_are_loaded_together(tmp_path, reports, last_line):
    """A hundred saves in a row started two hundred workers, on a machine that was busy."""
    counted = CountedApp(tmp_path)
    keeper = AppKeeper(counted, reports.append, reload=True)

    for number in range(100):
        keeper._changed({tmp_path / f"shop_{number}.py"})
        keeper._refresh()
    assert counted.reloads == 1

    counted.reports.take(last_line)
    keeper._refresh()
    keeper._refresh()
    assert counted.reloads == 2

    counted.reports.take(last_line)
    keeper._refresh()
    assert counted.reloads == 2
