"""The processes of an instance tell each other what has come, and nobody relies on it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.runtime.process_state import ProcessState
from pipelines.runtime.siblings import FOLDER, Siblings, open_siblings
from pipelines.streams.arrivals import Arrivals
from tests.stack import until

WAITED_FOR_S = 30.0
LISTENER = """
import sys
from pipelines.runtime.siblings import open_siblings
open_siblings(lambda word: print(word, flush=True))
print("listens", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short name: that of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory() as made:
        monkeypatch.setenv(FOLDER, made)
        yield Path(made)


def test_another_process_hears_and_one_that_was_killed_is_forgotten(folder: Path) -> None:
    heard: list[str] = []
    here = Siblings(str(folder), heard.append)
    command = [sys.executable, "-c", LISTENER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "listens\n"
        here.tell(["in:one:", "in:two:"])
        assert other.stdout.readline() == "in:one:\n"
        assert other.stdout.readline() == "in:two:\n"
        other.kill()
    here.tell(["in:three:"])
    assert len(list(folder.iterdir())) == 1
    here.close()
    assert list(folder.iterdir()) == []
    assert heard == []  # Its own words are not for itself.


def test_who_waits_wakes_for_what_another_process_has_sent(folder: Path) -> None:
    """The wait is for half a minute, and ends with the word."""
    reader, sender = ProcessState(), ProcessState()
    arrivals = Arrivals.of(reader)
    woken = threading.Event()

    def wait() -> None:
        arrivals.wait("p:c:0000:", WAITED_FOR_S)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    until(lambda: Arrivals.of(sender).came({"p:c:0000:"}) or woken.is_set(), 10, every_s=0.05)
    reader.shutdown()
    Arrivals.of(sender).came({"p:c:0000:"})  # Nobody is there.
    sender.shutdown()


def test_where_there_is_no_folder_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert open_siblings(str) is None
    monkeypatch.setenv(FOLDER, str(tmp_path / "gone"))
    assert open_siblings(str) is None
