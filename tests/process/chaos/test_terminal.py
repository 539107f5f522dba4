"""The measurement of the terminal: faults strike all the time, and too many lines are a failure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any

import pytest

from benchmarks.chaos import loads
from benchmarks.chaos import terminal as command

pytestmark = pytest.mark.fast

TRACEBACK = "app        Traceback (most recent call last):"


class _Stack:
    def __init__(self) -> None:
        self.rules: list[Mapping[str, Any]] = []

    def control(self, path: str, body: Mapping[str, Any]) -> None:
        assert path == "/api/v1/faults"
        self.rules.append(body)


class _Stage:
    """A stage that says a line at each kill."""

    def __init__(self, terminal: IO[str], lines: Sequence[str]) -> None:
        self.stack, self.struck, self.killed = _Stack(), list[str](), 0
        self._terminal, self._lines = terminal, lines

    def kill(self, most: int) -> None:
        self.killed += most
        if self.killed == 1:
            self._terminal.write("".join(f"{line}\n" for line in self._lines))
            self._terminal.flush()


class _Loads:
    """Loads that do nothing."""

    def __init__(self, *given: Any) -> None:
        pass

    def open(self) -> None:
        pass

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("lines", "code", "last"),
    [
        (["app        App answers again"] * 50, 0, "50 lines in 10 minutes"),
        (["x"] * 51, 1, "51 lines in 10 minutes; 51 lines are more than a screen of 50"),
        (["x", TRACEBACK], 1, "2 lines in 10 minutes; 1 tracebacks of handled errors"),
    ],
)
def test_more_than_a_screen_or_a_traceback_fails(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lines: Sequence[str],
    code: int,
    last: str,
) -> None:
    """After as many faults as minutes, but one, with a kill each."""
    now_s, stages = [0.0], list[_Stage]()

    @contextlib.contextmanager
    def staged(emulator: str, seed: int, terminal: IO[str]) -> Iterator[_Stage]:
        stages.append(_Stage(terminal, lines))
        yield stages[-1]
        terminal.write("too late to count\n")

    clock = SimpleNamespace(
        monotonic=lambda: now_s[0], sleep=lambda s: now_s.__setitem__(0, now_s[0] + s)
    )
    monkeypatch.setattr(command, "staged", staged)
    monkeypatch.setattr(command, "time", clock)
    monkeypatch.setattr(loads, "AllLoads", _Loads)
    monkeypatch.setattr(command, "strike", lambda stage, faults: stage.struck.extend(faults))

    assert command.main(["--minutes", "10"]) == code

    (stage,) = stages
    assert stage.killed == 9
    assert len(set(stage.struck)) >= 9
    assert [rule["kind"] for rule in stage.stack.rules] == [
        "error",
        "duplicate",
        "delay",
        "lose_response",
    ]
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_restart_is_no_strike_of_it() -> None:
    """It would begin the screen anew."""
    assert "restart" not in command.STRIKES
    assert len(command.STRIKES) > 15
