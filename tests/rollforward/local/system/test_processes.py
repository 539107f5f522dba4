"""Child processes: nothing that was started outlives its parent."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rollforward.local.errors import ServiceFailedError
from rollforward.local.system.processes import GuardedProcess, until_idle
from tests.rollforward.local.conftest import eventually, wait_gone

ROOT = Path(__file__).parents[4]

# A child with a child of its own, which would outlive it.
FAMILY = ["bash", "-c", "sleep 600 & echo ready; wait"]

PARENT = """
import sys
from rollforward.local.system.processes import GuardedProcess, until_idle
child = GuardedProcess("family", ["bash", "-c", "sleep 600 & echo ready; wait"],
                       on_line=lambda line: print(line, flush=True))
child.start()
sys.stdin.read()
"""


@pytest.fixture
def lines():
    """The lines a child printed."""
    return []


@pytest.fixture
def family(lines):
    """A running child that has a child."""
    process = GuardedProcess("family", FAMILY, on_line=lines.append)
    process.start()
    eventually(lambda: lines == ["ready"], "the child is ready")
    yield process
    process.stop()


def test_stop_ends_the_command_and_its_children(family):
    """The whole group goes, not only the command."""
    command = family.process()
    everybody = [command, *command.children(recursive=True)]

    family.stop()

    assert len(everybody) == 2
    wait_gone(everybody)
    assert not family.running


def test_a_killed_parent_leaves_nothing_behind():
    """SIGKILL gives the parent no chance to tidy up, and none is needed."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout.readline() == b"ready\n"
        descendants = psutil.Process(parent.pid).children(recursive=True)

        parent.kill()

    assert len(descendants) == 3  # the guard, bash and sleep
    wait_gone(descendants)


def test_a_killed_guard_is_reported_as_ended(family):
    """If the guard itself is killed, the parent knows."""
    left = family.process().children(recursive=True)
    guard = family.process().parent()
    left.append(family.process())

    guard.kill()

    assert family.wait(30)
    assert not family.running
    for process in left:
        process.kill()


def test_the_exit_code_is_the_commands(lines):
    """A caller sees how the command ended, not how its guard did."""
    process = GuardedProcess("exit", ["bash", "-c", "echo bye; exit 3"], on_line=lines.append)
    process.start()

    assert process.wait(30)
    assert (process.exit_code, lines) == (3, ["bye"])
    assert "bye" in process.describe_end()


def test_a_missing_command_is_said_and_ends_with_127(lines):
    """A program that is not there is an ordinary end."""
    process = GuardedProcess("missing", ["no-such-program"], on_line=lines.append)
    process.start()

    assert process.wait(30)
    assert process.exit_code == 127
    assert lines == ["no-such-program: No such file or directory"]


def test_sighup_reaches_the_command(lines):
    """Reloading works through the guard."""
    script = "trap 'echo hup; exit 0' HUP; echo ready; while :; do sleep 0.05; done"
    process = GuardedProcess("hup", ["bash", "-c", script], on_line=lines.append)
    process.start()
    eventually(lambda: "ready" in lines, "the trap is set")

    process.reload()

    assert process.wait(30)
    assert lines == ["ready", "hup"]


def test_an_ended_process_has_no_process():
    """Asking for the process of an ended command is an error, not a guess."""
    process = GuardedProcess("short", ["true"])
    process.start()
    process.wait(30)

    with pytest.raises(ServiceFailedError):
        process.process()


def test_a_process_that_ended_and_was_forgotten_leaves_no_pipe_open():
    """Its owner may start another in its place and never ask for it again."""
    before = psutil.Process().num_fds()

    process = GuardedProcess("short", ["true"])
    process.start()

    eventually(lambda: psutil.Process().num_fds() <= before, "its pipes are closed")


def test_output_is_kept_in_a_log_file(tmp_path):
    """Each child's lines can be read afterwards."""
    process = GuardedProcess("chatty", ["echo", "日本語"], log_dir=tmp_path / "logs")
    process.start()
    process.wait(30)

    assert (tmp_path / "logs" / "chatty.log").read_text() == "日本語\n"


def test_a_line_that_cannot_be_shown_ends_no_command(lines):
    """The reader of its output must go on: the guard takes its end for ours."""

    def show(line):
        lines.append(line)
        raise RecursionError("a print of nested JSON")

    process = GuardedProcess("chatty", ["sh", "-c", "echo one; echo two"], on_line=show)
    process.start()

    assert process.wait(30)
    assert (lines, process.exit_code) == (["one", "two"], 0)


@pytest.mark.parametrize("is_full", [True, False])
def test_a_log_that_cannot_be_written_ends_no_command(tmp_path, lines, is_full):
    """As on a full disk, or in a folder of somebody else: Datastore would end unsaved."""
    logs = tmp_path / "logs"
    if is_full:
        logs.mkdir()
        (logs / "chatty.log").symlink_to("/dev/full")
    else:
        logs.touch()
    process = GuardedProcess(
        "chatty", ["sh", "-c", "echo one; echo two"], log_dir=logs, on_line=lines.append
    )
    process.start()

    assert process.wait(30)
    assert (lines, process.exit_code) == (["one", "two"], 0)


def test_a_process_that_computes_is_not_idle():
    """It is when it sleeps; while it computes, waiting for that ends after the given time."""
    code = "import sys, time\nsys.stdin.readline()\nprint(flush=True)\ntime.sleep(600)"
    busy = "while True: pass"
    with (
        subprocess.Popen([sys.executable, "-c", busy]) as computing,
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as sleeping,
    ):
        sleeping.stdin.write(b"\n")
        sleeping.stdin.flush()
        sleeping.stdout.readline()

        assert until_idle(psutil.Process(sleeping.pid), 30)
        assert not until_idle(psutil.Process(computing.pid), 0.3)

        computing.kill()
        sleeping.kill()
