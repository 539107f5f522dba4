"""Logs that are renamed, truncated or gone while a pull source reads them."""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.runtime import Clients
from rollforward.streams.connectors import rotated_logs
from rollforward.streams.connectors.rotated_logs import rotated_lines

NOW = datetime.datetime(2030, 5, 1, tzinfo=datetime.UTC)
OLD_S = 60


def texts(line: bytes) -> tuple[str, int] | None:
    return (line.decode(), 1) if line else None


class Log:
    """A log with its reader, which goes on from its position."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder / "access.log"
        self.clients: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: NOW))
        self.reader = rotated_lines(self.path, texts, **options)
        self.position: Any = None

    def write(self, *lines: str, to: Path | None = None, age_s: float = 0) -> None:
        path = to or self.path
        with path.open("a") as opened:
            opened.write("".join(lines))
        self.age(path, age_s)

    def age(self, path: Path, age_s: float) -> None:
        at_s = NOW.timestamp() - age_s
        os.utime(path, (at_s, at_s))

    def rotate(self, name: str = "access.log.1") -> Path:
        return self.path.rename(self.path.with_name(name))

    def read(self, limit: int = 100) -> list[str]:
        """Read once; a repetition from the same position reads the same."""
        first, again = (self.reader(self.clients, self.position, limit) for _ in range(2))
        assert first == again
        assert not first.is_over
        self.position = first.position
        return [value for value, _ in first.records]

    def rest(self) -> list[str]:
        """Read until nothing more comes."""
        found, position = self.read(), object()
        while position != self.position:
            position = self.position
            found += self.read()
        return found


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_a_log_is_read_on_as_it_grows(log: Log) -> None:
    """A line when it has its end, none twice; without a log there is nothing yet."""
    assert log.read() == []
    log.write("one\n", "two\n", "thr")
    assert (log.read(1), log.read(), log.read()) == (["one"], ["two"], [])
    log.write("ee\n")
    assert log.read() == ["three"]


def test_a_log_that_was_renamed_is_read_to_its_end_first(log: Log) -> None:
    """G1: its program may write to it until it opens the new one."""
    log.write("one\n")
    log.read()
    renamed = log.rotate()
    log.write("two\n", "last", to=renamed)
    assert log.rest() == ["two"]  # There is no new log yet.
    log.write("new\n")
    assert log.rest() == []
    log.age(renamed, OLD_S)

    assert log.rest() == ["last", "new"]


@pytest.mark.parametrize(
    "names",
    [
        ("access.log.11", "access.log.9", "access.log.1"),
        ("access.log-20300428", "access.log-20300429-1", "access.log-20300429-12"),
        ("access.log.2030-04-09", "access.log.2030-04-10", "access.log.2030-04-11"),
    ],
)
def test_several_rotations_between_two_reads_lose_nothing(log: Log, names: Sequence[str]) -> None:
    """G1: in the order in which they were written; other files are not read."""
    for name in ("access.log-errors", "access.log.2.gz", "access.log.bak"):
        log.write(f"{name}\n", to=log.path.with_name(name), age_s=1_000)
    log.write("0\n")
    assert log.read() == ["0"]
    for number, name in enumerate(names, 1):
        log.write(f"{number}\n", age_s=500 - number)
        log.rotate(name)
    log.write("now\n")

    assert log.rest() == ["1", "2", "3", "now"]


def test_a_log_that_was_truncated_is_read_from_its_beginning(log: Log) -> None:
    """The copy that was made of it has been read already."""
    log.write("one\n", "two\n")
    log.read()
    log.write("one\n", "two\n", to=log.path.with_name("access.log.1"), age_s=OLD_S)
    log.path.write_text("new\n")
    log.age(log.path, 0)
    assert log.rest() == ["new"]

    log.path.write_text("longer than what was read\n")
    assert log.rest() == ["longer than what was read"]


def test_a_renamed_file_that_is_gone_is_told_of(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.write("one\n", "lost\n")
    log.read(1)
    log.rotate().unlink()
    before = log.rest()
    log.write("new\n")

    assert (before, log.rest()) == ([], ["new"])
    assert "the file that was read up to byte 4 is gone or truncated" in caplog.text


def test_a_rotation_during_a_read_loses_and_doubles_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: between the look at the folder and the opening of a file."""
    log.write("one\n")
    log.read()
    log.write("two\n")
    real, is_rotated = rotated_logs._log_files, False

    def rotated(path: Path) -> list[Any]:
        nonlocal is_rotated
        files = real(path)
        if not is_rotated:
            is_rotated = True
            log.age(log.rotate(), OLD_S)
            log.write("a longer line of the new log\n")
        return files

    monkeypatch.setattr(rotated_logs, "_log_files", rotated)
    position = log.position
    first = log.reader(log.clients, position, 10)

    assert (first.records, first.position) == ([], position)
    assert log.rest() == ["two", "a longer line of the new log"]


def test_a_log_with_a_second_name_is_read_once(log: Log) -> None:
    """G19: as a link to the file of the day has."""
    day = log.path.with_name("access.log-20300501")
    log.write("a\n", "b\n", to=day, age_s=OLD_S)
    log.path.symlink_to(day)

    assert log.rest() == ["a", "b"]
    assert log.rest() == []
    log.path.unlink()
    os.link(day, log.path)
    assert log.rest() == []


def test_a_log_that_is_gone_leaves_what_was_read_before_alone(log: Log) -> None:
    """G19: until there is a log again."""
    log.write("a\n")
    log.read()
    log.age(log.rotate(), OLD_S)
    log.write("b\n")
    assert log.rest() == ["b"]
    log.path.unlink()
    assert log.rest() == []
    log.write("c\n")

    assert log.rest() == ["c"]


def test_only_the_file_that_is_gone_is_lost(log: Log) -> None:
    """G19: a later renamed file that nobody has read is still there."""
    log.write("a\n", "lost\n", age_s=900)
    log.read(1)
    log.rotate("access.log.2").unlink()
    log.write("b\n", age_s=800)
    log.rotate("access.log.1")
    log.write("c\n", age_s=OLD_S)

    assert log.rest() == ["b", "c"]


def test_a_renamed_file_is_read_if_the_log_has_the_inode_of_one_that_is_gone(log: Log) -> None:
    """G19: file systems give the inode of a deleted file to the next one."""
    log.write("a\n", "lost\n", age_s=900)
    log.read(1)
    gone = log.rotate("gone")
    log.write("b\n", age_s=800)
    log.rotate("access.log.1")
    gone.write_text("c\n")
    log.age(gone.rename(log.path), OLD_S)

    assert log.rest() == ["b", "c"]


def test_a_copy_that_was_made_before_a_truncation_is_not_read_again(log: Log) -> None:
    """G19: it is younger than the read, and has what was read."""
    log.write("a\n", "b\n", age_s=900)
    log.read()
    log.write("a\n", "b\n", to=log.path.with_name("access.log.1"), age_s=800)
    log.path.write_text("c\n")
    log.age(log.path, OLD_S)

    assert log.rest() == ["c"]


@pytest.mark.parametrize("touched", ["access.log.2", ""])
def test_renamed_files_are_read_by_their_names_not_by_their_times(log: Log, touched: str) -> None:
    """G19: a file that was touched, or files of one time."""
    log.write("0\n", age_s=OLD_S)
    log.read()
    log.rotate("access.log.3")
    for number, name in ((1, "access.log.2"), (2, "access.log.1")):
        log.write(f"{number}\n", age_s=OLD_S)
        log.rotate(name)
    log.write("3\n", age_s=OLD_S)
    if touched:
        log.age(log.path.with_name(touched), OLD_S - 20)

    assert log.rest() == ["1", "2", "3"]


def test_a_renamed_file_is_not_complete_before_the_new_log_is_written_to(log: Log) -> None:
    """G19: its program may be quiet for long, and still write to it."""
    log.write("a\n")
    log.read()
    renamed = log.rotate()
    log.write(age_s=OLD_S)
    log.age(renamed, OLD_S)
    assert log.rest() == []
    log.write("b\n", to=renamed, age_s=OLD_S)
    log.write("c\n")

    assert log.rest() == ["b", "c"]


def test_another_log_and_a_folder_are_no_renamed_files(log: Log) -> None:
    """G19: each of `web` and `web-1` is a log."""
    log.write("a\n")
    log.read()
    log.age(log.rotate("access.log.2"), OLD_S)
    log.write("other\n", to=log.path.with_name("access.log-1"), age_s=OLD_S)
    log.path.with_name("access.log.1").mkdir()
    log.write("b\n")

    assert log.rest() == ["b"]


def test_a_rotation_between_two_looks_at_the_folder_hides_no_file(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write("a\n")
    log.read()
    log.write("b\n", age_s=OLD_S)
    real, is_rotated = Path.stat, False

    def stat(self: Path, **options: Any) -> os.stat_result:
        nonlocal is_rotated
        if self == log.path and not is_rotated:
            is_rotated = True
            log.rotate()
            log.write("c\n")
        return real(self, **options)

    log.path.with_name("access.log.1").touch()
    monkeypatch.setattr(Path, "stat", stat)

    assert log.rest() == ["b", "c"]
    assert is_rotated


@pytest.mark.parametrize("seed", range(20))
def test_every_line_is_read_once_whatever_the_order_of_writes_and_rotations(
    log: Log, seed: int
) -> None:
    """G19: by any limit."""
    chance, written, found, rotations = random.Random(seed), list[str](), list[str](), 0
    log.write()
    log.read()
    for step in range(60):
        luck = chance.random()
        if luck < 0.5:
            lines = [f"{step}.{n}" for n in range(chance.randrange(1, 4))]
            log.write(*(f"{line}\n" for line in lines), age_s=10_000 - step)
            written += lines
        elif luck < 0.65 and log.path.stat().st_size:
            rotations += 1
            for number in range(rotations - 1, 0, -1):  # As logrotate does.
                log.path.with_name(f"access.log.{number}").rename(f"{log.path}.{number + 1}")
            log.rotate()
            log.write(age_s=10_000 - step - 0.5)
        else:
            found += log.read(chance.randrange(1, 5))

    assert found + log.rest() == written
    assert rotations


def test_a_clock_of_no_client_is_asked_before_there_is_a_file(tmp_path: Path) -> None:
    clients: Clients = None  # type: ignore[assignment]
    read = rotated_lines(tmp_path / "no.log", texts, settled=timedelta(0))

    assert read(clients, None, 1).records == []
    assert read(clients, [5, 0, 7, "start"], 1).position == [5, 0, 7, "start"]
