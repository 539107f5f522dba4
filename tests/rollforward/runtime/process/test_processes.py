"""The processes of an instance know which of them have died, and what these held open."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud.datastore_v1.types import RollbackRequest

from rollforward.runtime.process import processes
from rollforward.runtime.process.processes import (
    LockedFiles,
    NoProcesses,
    ProcessFile,
    open_processes,
)
from tests.infra.stack import ROOT

pytestmark = pytest.mark.fast

OTHER = """
import sys
from google.cloud.datastore_v1.types import RollbackRequest
from rollforward.runtime.process.processes import LockedFiles

processes = LockedFiles(sys.argv[1])
processes.mine.add(RollbackRequest.pb(RollbackRequest(project_id="p", transaction=b"open")))
print(processes.sign("owner"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process of the instance, which holds a transaction open."""
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def owner_in(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def request_of(id_: bytes) -> Any:
    return RollbackRequest.pb(RollbackRequest(project_id="p", transaction=id_))


def test_a_killed_process_is_known_to_be_dead(other: subprocess.Popen[str], tmp_path: Path) -> None:
    """... and each of its transactions is handed to one process, which holds it from then on."""
    owner = owner_in(other)
    one, second = LockedFiles(str(tmp_path)), LockedFiles(str(tmp_path))
    assert one.remove_dead() == []
    assert not one.is_dead(owner)

    other.kill()
    other.wait()
    requests = [*one.remove_dead(), *second.remove_dead()]

    assert requests == [request_of(b"open")]
    assert one.is_dead(owner)
    assert second.is_dead(owner)
    assert not second.is_dead(one.sign("owner"))
    assert ProcessFile.read(one.mine.path.read_bytes()) == requests


@pytest.mark.parametrize("owner", ["", "owner", "owner@elsewhere/1.y", "owner@{}/../1.x", "@{}/"])
def test_nobody_else_is_taken_for_dead(owner: str, tmp_path: Path) -> None:
    """Not one who did not sign, nor one of another instance, nor a name that leads elsewhere."""
    folder = tmp_path / "files"
    folder.mkdir()
    (tmp_path / ".dead-1.x").touch()
    (folder / ".dead-1.y").touch()

    ours = LockedFiles(str(folder))

    assert not ours.is_dead(owner.format(folder.name))
    assert ours.is_dead(f"owner@{folder.name}/1.y")


def test_a_request_that_fills_its_slot_is_kept_and_a_longer_one_is_not(tmp_path: Path) -> None:
    room = ProcessFile._SLOT_BYTES - ProcessFile._LENGTH.size
    around = len(request_of(bytes(300)).SerializeToString()) - 300
    full, longer = request_of(bytes(room - around)), request_of(bytes(room - around + 1))
    mine = ProcessFile(str(tmp_path))

    mine.add(longer)
    mine.add(full)

    assert ProcessFile.read(mine.path.read_bytes()) == [full]
    mine.close()


def test_a_file_that_is_torn_stops_nobody(tmp_path: Path) -> None:
    dead = ProcessFile(str(tmp_path))
    dead.add(request_of(b"torn"))
    dead.add(request_of(b"whole"))
    slot = dead._slots[b"torn"] * ProcessFile._SLOT_BYTES
    dead._memory[slot + 2 : slot + 4] = b"\xff\xff"
    dead.close()

    assert LockedFiles(str(tmp_path)).remove_dead() == [request_of(b"whole")]


def test_a_file_that_is_not_locked_yet_is_nobodys(tmp_path: Path) -> None:
    """A process makes its file before it can lock it."""
    (tmp_path / ".new").touch()

    assert LockedFiles(str(tmp_path)).remove_dead() == []


HOLDER = """
import sys
from rollforward.runtime.process.processes import LockedFiles

processes = LockedFiles(sys.argv[1])
print(processes.try_lock("row"), processes.try_lock("row"), flush=True)
sys.stdin.readline()
processes.unlock("row")
print("unlocked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "done"])
def test_a_lock_is_another_processs_until_that_is_done_or_dead(
    tmp_path: Path, is_killed: bool
) -> None:
    """Its own threads wait for it, too; one of another name does not."""
    mine, pipe = LockedFiles(str(tmp_path)), subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdin is not None
        assert owner_in(holder) == "True False"
        assert not mine.try_lock("row")
        assert mine.try_lock("another row")

        if not is_killed:
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert owner_in(holder) == "unlocked"
            assert mine.try_lock("row")
        holder.kill()
        holder.wait()

    assert mine.try_lock("row") == is_killed
    mine.unlock("row")
    assert mine.try_lock("row")


def test_where_files_cannot_be_locked_threads_take_turns_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network file systems: no thread waits for a lock that nobody has."""
    mine = LockedFiles(str(tmp_path))

    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(processes.fcntl, "lockf", no_locks)

    assert mine.try_lock("row")
    assert not mine.try_lock("row")
    mine.unlock("row")
    assert mine.try_lock("row")


def test_a_program_of_one_process_has_no_siblings(tmp_path: Path) -> None:
    assert open_processes(None) is None
    assert open_processes(str(tmp_path / "gone")) is None
    assert NoProcesses().sign("owner") == "owner"
    assert not NoProcesses().is_dead("owner")
    assert [NoProcesses().try_lock("row") for _ in range(2)] == [True, True]
