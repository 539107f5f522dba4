"""Reports of explorations: each failed play as a short script, with the text that replays it."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollforward.testing.calls import RemoteCall, is_of_user

_SHOWN_FAILURES = 3
_SHOWN_EVENTS = 24
_KINDS = {
    "error": "fails before it takes effect",
    "reply-lost": "takes effect, and its reply is lost",
    "crash-before": "is not made: the worker dies before it",
    "crash-after": "takes effect, and then the worker dies",
    "overlap": "waits while the same task is delivered once more, to its end",
    "meanwhile": "waits while another visitor acts",
}


@dataclass(frozen=True)
class Failure:
    """A play whose check failed.

    Attributes:
        fault: The text for `only`.
        events: The script of the play.
        error: The words of the failed assertion.
    """

    fault: str
    events: Sequence[str]
    error: str


class Counts(Protocol):
    """The counts of an exploration."""

    @property
    def calls(self) -> Sequence[RemoteCall]: ...

    @property
    def plays(self) -> Counter[str]: ...

    @property
    def planned(self) -> int: ...

    @property
    def missed(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def failures(self) -> Sequence[Failure]: ...


def summary(counts: Counts) -> str:
    """Return the counts in a line."""
    played = sum(counts.plays.values())
    of_all = f" of {counts.planned}" if played < counts.planned else ""
    by_fault = ", ".join(f"{count} {fault}" for fault, count in counts.plays.items())
    result = f"{len(counts.failures)} failed" if counts.failures else "all as asserted"
    missed = f"; {counts.missed} faults did not occur" if counts.missed else ""
    return (
        f"explored {len(counts.calls)} remote calls in {played}{of_all} plays ({by_fault}): "
        f"{result}{missed}, in {counts.seconds:.1f} s"
    )


def of_failures(counts: Counts) -> str:
    """Return the scripts of the first failed plays, and the faults of the others."""
    lines = [summary(counts)]
    for number, failure in enumerate(counts.failures[:_SHOWN_FAILURES], 1):
        lines += ["", f"{number}. {failure.fault}"]
        lines += [f"   {event}" for event in failure.events[:_SHOWN_EVENTS]]
        if len(failure.events) > _SHOWN_EVENTS:
            lines.append(f"   ... and {len(failure.events) - _SHOWN_EVENTS} more")
        lines += [f"   => {failure.error}".replace("\n", "\n      ")]
        lines += [f'   replay: explore(..., only="{failure.fault}")']
    further = counts.failures[_SHOWN_FAILURES:]
    if further:
        lines += ["", "It fails with these faults, too:", *(f"   {one.fault}" for one in further)]
    return "\n".join(lines)


def of_fault(kind: str, index: int, call: RemoteCall) -> list[str]:
    """Return the lines of a script in which a call is broken."""
    fault, _, code = kind.partition(":")
    by = f" ({code})" if code else ""
    place = f"in {call.delivery}, " if call.delivery else ""
    lines = [f"! {place}call {index}, {call}, {_KINDS.get(fault, fault)}{by}"]
    return [*lines, f"  {call.line}"] if call.line else lines


def of_error(error: BaseException) -> str:
    """Return what an assertion said, and where."""
    is_said = isinstance(error, AssertionError) or not isinstance(error, Exception)
    words = str(error).strip() if is_said else repr(error)
    place, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if is_of_user(name):
            text = linecache.getline(name, trace.tb_lineno).strip()
            place = f"{Path(name).name}:{trace.tb_lineno}: {text}"
        trace = trace.tb_next
    return "\n".join(filter(None, [words or type(error).__name__, place]))
