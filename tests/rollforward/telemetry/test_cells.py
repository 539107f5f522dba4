"""Cells that processes share: exact in each, and summed over all."""

from __future__ import annotations

import multiprocessing
import resource
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollforward.runtime.process.processes import open_processes
from rollforward.telemetry.cells import FOLDER, Cells

pytestmark = pytest.mark.fast


def add_in_a_process(folder: str, times: int) -> None:
    cells = Cells(folder)
    for _ in range(times):
        cells.add(("a", "b"), ((0, 1.0), (2, 0.5)), 3)


def test_what_is_added_is_there() -> None:
    """By key and index."""
    cells = Cells()
    cells.add(("a",), ((0, 1.0),), 2)
    cells.add(("a",), ((1, 2.5),), 2)
    cells.add(("日本", '"\n'), ((0, 1.0),), 1)

    assert cells.sums() == {("a",): [1.0, 2.5], ("日本", '"\n'): [1.0]}


@pytest.mark.parametrize("name", ["", "a", "a" * 20, "日本"])
def test_numbers_begin_at_a_word_of_memory(name: str) -> None:
    """A process that reads meanwhile sees a number of before or of after, and no half."""
    cells = Cells()
    for key in (("first", name), (name,)):
        cells.add(key, ((0, 1.0),), 2)

    assert [at % 8 for at in cells._offsets.values()] == [0, 0]


def test_processes_add_up_and_the_dead_stay_counted(tmp_path: Path) -> None:
    """Three workers add at once, and are gone; a fourth reads the sum."""
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=add_in_a_process, args=(str(tmp_path), 200)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    cells = Cells(str(tmp_path))
    cells.add(("a", "b"), ((1, 7.0),), 3)

    assert cells.sums() == {("a", "b"): [600.0, 7.0, 300.0]}
    assert len(list((tmp_path / FOLDER).iterdir())) <= 3


def test_workers_one_after_the_other_leave_one_file(tmp_path: Path) -> None:
    """A worker that starts again and again fills no disk; it has the rows of those before it."""
    context = multiprocessing.get_context("spawn")
    for _ in range(3):
        worker = context.Process(target=add_in_a_process, args=(str(tmp_path), 200))
        worker.start()
        worker.join()
    used = {path.name: path.read_bytes()[:8] for path in (tmp_path / FOLDER).iterdir()}
    cells, other = Cells(str(tmp_path)), Cells(str(tmp_path))
    cells.add(("a", "b"), ((1, 7.0),), 3)
    other.add(("a", "b"), ((0, 1.0),), 3)

    assert cells.sums() == other.sums() == {("a", "b"): [601.0, 7.0, 300.0]}
    assert len(used) == 1
    files = {path.name: path.read_bytes()[:8] for path in (tmp_path / FOLDER).iterdir()}
    assert (len(files), files | used) == (2, files)


def test_a_torn_file_is_begun_anew(tmp_path: Path) -> None:
    """Neither the next worker nor a scrape fails by it."""
    (tmp_path / FOLDER).mkdir()
    torn = struct.pack("qii8s", 64, 8, 3, b"no JSON!")
    (tmp_path / FOLDER / "1-torn").write_bytes(torn.ljust(4096, b"\0"))
    cells = Cells(str(tmp_path), file_bytes=4096)
    assert cells.add(("a", "b"), ((1, 7.0),), 3)

    assert cells.sums() == {("a", "b"): [0.0, 7.0, 0.0]}
    assert len(list((tmp_path / FOLDER).iterdir())) == 1


def test_threads_lose_nothing() -> None:
    """Deliveries of one worker end side by side."""
    cells = Cells()

    def add() -> None:
        for _ in range(2_000):
            cells.add(("a",), ((0, 1.0),), 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert cells.sums() == {("a",): [8_000.0]}


def test_a_full_file_takes_no_new_row_and_keeps_the_others() -> None:
    """The number of rows is bounded by its size."""
    cells = Cells(file_bytes=4096)
    added = [cells.add((f"key-{number}",), ((0, 1.0),), 16) for number in range(100)]

    assert added.count(True) in range(10, 60)
    assert not added[-1]
    assert cells.add(("key-0",), ((0, 1.0),), 16)
    assert cells.sums()[("key-0",)][0] == 2.0


@pytest.mark.parametrize("content", [b"", b"\1", b"\xff" * 8, bytes(8)])
def test_a_file_that_is_being_made_is_read_as_empty(tmp_path: Path, content: bytes) -> None:
    """Another worker may have begun this moment."""
    cells = Cells(str(tmp_path))
    cells.add(("a",), ((0, 1.0),), 1)
    (tmp_path / FOLDER / "new").write_bytes(content)

    assert cells.sums() == {("a",): [1.0]}


def test_a_folder_that_takes_no_file_stops_no_worker(tmp_path: Path) -> None:
    """It counts by itself then."""
    cells = Cells(str(tmp_path / "gone"))
    cells.add(("a",), ((0, 1.0),), 1)

    assert cells.sums() == {("a",): [1.0]}


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file grow longer: a write takes a part, as on a disk that is nearly full."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def test_a_disk_that_is_nearly_full_stops_no_worker(tmp_path: Path) -> None:
    """A worker counts by itself then, and leaves no part of a file behind."""
    with files_of_at_most(2048):
        cells = Cells(str(tmp_path), file_bytes=4096)
    cells.add(("a",), ((0, 1.0),), 1)

    assert cells.sums() == {("a",): [1.0]}
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_process_on_a_disk_that_is_nearly_full_works_without_a_file(tmp_path: Path) -> None:
    """Others cannot tell when it dies, and its transactions begin and end as ever."""
    with files_of_at_most(64 * 1024):
        processes = open_processes(str(tmp_path))

    assert processes is None
    assert list(tmp_path.iterdir()) == []
