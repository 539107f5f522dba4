"""Results of a run, from the states of the board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = ("tops", "rates", "visits", "hits")


@dataclass(frozen=True)
class Results:
    """Written results of a run.

    Attributes:
        newest: By kind the last results, the newest first.
        series: Requests and errors of windows that do not overlap, by their beginnings in the time
            of the stream.
        seconds: Number of written results, by second since the run began.
        last_ms: Time of the last result, since 1970.
    """

    newest: Mapping[str, Sequence[Mapping[str, Any]]]
    series: Mapping[int, tuple[int, int]]
    seconds: Mapping[int, int]
    last_ms: int


def results_of(board: Mapping[str, Any], begin: int, started_ms: float) -> Results:
    """Return the results of a run.

    Args:
        board: The states of the board, by key.
        begin: The beginning of the run, in the time of the stream.
        started_ms: The start of the run, since 1970.
    """
    newest: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KINDS}
    series, seconds = dict[int, tuple[int, int]](), Counter[int]()
    for key, state in board.items():
        newest[key.partition(".")[0]] += [
            result for result in state["last"] if result["start"] >= begin
        ]
        for start, (requests, errors) in state.get("series", {}).items():
            if int(start) >= begin:
                series[int(start)] = (requests, errors)
        for second, count in state["seconds"].items():
            if (since := int(second) - int(started_ms // 1000)) >= 0:
                seconds[since] += count
    for results in newest.values():
        results.sort(key=lambda result: (-result["end"], result["key"]))
    last_ms = max((state["at_ms"] for state in board.values()), default=0)
    return Results(newest, dict(sorted(series.items())), seconds, last_ms)
