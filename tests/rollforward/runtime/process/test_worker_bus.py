"""Messages between the processes of an instance, which are only hints."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollforward.runtime.process.worker_bus import FOLDER, WorkerBus, subscribe

pytestmark = pytest.mark.fast

LISTENER = """
import sys
from rollforward.runtime.process.worker_bus import subscribe
subscribe(lambda word: print(word.decode(), flush=True))
print("listens", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short name, since a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as path:
        monkeypatch.setenv(FOLDER, path)
        yield Path(path)


def test_another_process_hears_and_one_that_was_killed_is_forgotten(folder: Path) -> None:
    heard: list[bytes] = []
    bus = WorkerBus(str(folder), heard.append)
    command = [sys.executable, "-c", LISTENER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "listens\n"
        bus.broadcast(b"one")
        bus.broadcast(b"two")
        assert other.stdout.readline() == "one\n"
        assert other.stdout.readline() == "two\n"
        other.kill()
    bus.broadcast(b"three")
    assert len(list(folder.iterdir())) == 1
    bus.close()
    assert list(folder.iterdir()) == []
    assert heard == []  # Its own words are not for itself.


def test_where_there_is_no_folder_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert subscribe(print) is None
    monkeypatch.setenv(FOLDER, str(tmp_path / "gone"))
    assert subscribe(print) is None


def test_a_process_that_can_open_no_file_fails_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is a hint, so the work that sends it goes on."""

    def refuse(path: Path) -> Iterator[Path]:
        raise OSError(24, "Too many open files")

    bus = WorkerBus(str(folder), print)
    monkeypatch.setattr(Path, "iterdir", refuse)
    bus.broadcast(b"one")
    monkeypatch.undo()
    bus.close()
