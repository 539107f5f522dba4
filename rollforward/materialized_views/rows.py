"""Rows of views: the contributions of their sources, and the sums.

All arithmetic is exact: whole numbers, and fractions for floats. So a row depends on the set of
its changes and never on their order.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rollforward.materialized_views.entities import ViewRow, table_and_row
from rollforward.runtime.texts import has_unpaired_surrogate

Value = int | float | str
Measures = Mapping[str, Value]
# How a row is called: a text, a whole number, or a tuple of such.
RowName = str | int | tuple[str | int, ...]
# What one source contributes: {row: {measure: value}}. An empty {} in a row is counted too.
Contributions = Mapping[RowName, Measures]

MAX_ROW_BYTES = 1_000
MAX_ROWS = 200
MAX_MEASURES = 50
MAX_MEASURE_CHARS = 100
# Of all sources of a row. Their exact sums, at their longest, fit into an entity.
MAX_SUMS = 200
MAX_TEXT_CHARS = 1_000
# Of one source in one row, as JSON: it travels in one task.
MAX_MEASURES_BYTES = 80_000
# Beyond it two whole numbers share one place in the order of floats.
MAX_SAFE_INTEGER = 2**53
# The square of it, a billion times, is still a float.
MAX_ABS_VALUE = 1e140
_FINGERPRINT_BITS = 64
_NEVER = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  Datastore's are naive.


class BadContributionError(ValueError):
    """A view's function returned what no row can hold; its text says what."""


def row_text(name: RowName) -> str:
    """Return a row's name as it is stored.

    >>> row_text(7), row_text("7"), row_text(("a", 1))
    ('7', '"7"', '["a",1]')
    """
    parts = name if isinstance(name, tuple) else (name,)
    if not parts or not all(type(part) in (str, int) for part in parts):
        raise BadContributionError(f"row name must be a str, an int or a tuple, got {name!r:.60}")
    if any(isinstance(part, int) and part.bit_length() > 8 * MAX_ROW_BYTES for part in parts):
        raise BadContributionError(f"row name must be at most {8 * MAX_ROW_BYTES:,} bits long")
    text = json.dumps(name, ensure_ascii=False, separators=(",", ":"))
    _check_length("row name", text)
    size = len(text.encode())
    if size > MAX_ROW_BYTES:
        raise BadContributionError(f"row name must be at most {MAX_ROW_BYTES} bytes, got {size}")
    return text


def row_name(text: str) -> RowName:
    """Return the name in a stored text.

    >>> row_name('["a",1]')
    ('a', 1)
    """
    name = json.loads(text)
    return tuple(name) if isinstance(name, list) else name


def prefix_text(parts: tuple[str | int, ...]) -> str:
    """Return the common prefix of the stored names of tuples that begin with some parts.

    >>> prefix_text(("a", 1))
    '["a",1,'
    """
    if not isinstance(parts, tuple):
        form = "prefix must be a tuple of the first parts of a row's name"
        raise BadContributionError(f"{form}, got {parts!r:.60}")
    return row_text(parts)[:-1] + "," if parts else ""


def checked(contributions: Contributions, ranked: Sequence[str]) -> dict[str, dict[str, Value]]:
    """Return contributions as they are stored.

    Raises:
        BadContributionError: something in them cannot be stored, added up or ranked.
    """
    are_rows = isinstance(contributions, Mapping)
    if not (are_rows and all(isinstance(part, Mapping) for part in contributions.values())):
        form = "contributions must be {row: {measure: value}}, and {} for a source in no row"
        raise BadContributionError(f"{form}, got {contributions!r:.60}")
    if len(contributions) > MAX_ROWS:
        limit = f"a source must contribute to at most {MAX_ROWS} rows of a view"
        raise BadContributionError(f"{limit}, got {len(contributions)}")
    stored = {row_text(row): dict(measures) for row, measures in contributions.items()}
    for measures in stored.values():
        if len(measures) > MAX_MEASURES:
            limit = f"a row must have at most {MAX_MEASURES} measures"
            raise BadContributionError(f"{limit}, got {len(measures)}")
        for measure, value in measures.items():
            if type(measure) is not str:
                raise BadContributionError(f"measure name must be a str, got {measure!r:.60}")
            _check_length("measure name", measure)
            if len(measure) > MAX_MEASURE_CHARS:
                limit = f"at most {MAX_MEASURE_CHARS} characters"
                raise BadContributionError(f"measure name must be {limit}, got {len(measure)}")
            _check(measure, value, is_ranked=measure in ranked)
        size = len(json.dumps(measures, ensure_ascii=False).encode())
        if size > MAX_MEASURES_BYTES:
            raise BadContributionError(
                f"the measures for a row must be at most {MAX_MEASURES_BYTES:,} bytes, got {size:,}"
            )
    return stored


def _check(measure: str, value: Value, *, is_ranked: bool) -> None:
    if type(value) not in (int, float, str):
        raise BadContributionError(f"{measure} must be a number or a str, got {value!r:.60}")
    if isinstance(value, str):
        if len(value) > MAX_TEXT_CHARS:
            limit = f"at most {MAX_TEXT_CHARS} characters"
            raise BadContributionError(f"{measure} must be {limit}, got {len(value)}")
        _check_length(measure, value)
    elif not -MAX_ABS_VALUE <= value <= MAX_ABS_VALUE:  # Not a number is neither.
        raise BadContributionError(
            f"{measure} must be between -{MAX_ABS_VALUE:g} and {MAX_ABS_VALUE:g}"
        )
    elif is_ranked and abs(value) > MAX_SAFE_INTEGER:
        raise BadContributionError(f"{measure} is ranked and must be within 2**53, got {value}")


def _check_length(label: str, text: str) -> None:
    if has_unpaired_surrogate(text):
        raise BadContributionError(f"{label} contains an unpaired surrogate")


def ranks_of(measures: Measures, ranked: Mapping[str, str]) -> list[str]:
    """Return a marker's places in the order by each ranked measure, given their prefixes."""
    return [prefix + _rank(measures[name]) for name, prefix in ranked.items() if name in measures]


def _rank(value: Value) -> str:
    """Return a text that sorts as the value does: numbers first, then texts.

    >>> sorted(["b", 10, -2.5, 9, "a"], key=_rank)
    [-2.5, 9, 10, 'a', 'b']
    """
    if isinstance(value, str):
        exact = value.encode()
        return f"t{value}" if len(exact) < 400 else f"u{hashlib.sha256(exact).hexdigest()}"
    bits: int = struct.unpack(">q", struct.pack(">d", value + 0.0))[0]
    # The bits of a float sort as it does once the negative ones are turned round.
    ordered = bits ^ 0x7FFF_FFFF_FFFF_FFFF if bits < 0 else bits
    return f"n{ordered + 2**63:016x}"


def empty_row(key: Any) -> ViewRow:
    """Return a row that no source is in."""
    return ViewRow(key=key, counts={}, sums={}, fingerprint="0", applied=_NEVER)


@dataclass(frozen=True)
class RowEntry:
    """A source in a row: a change of the source, and its contribution since then."""

    source: str
    sequence: int
    measures: Measures

    @property
    def kind(self) -> str:
        return self.source.rpartition(":")[0]

    @property
    def fingerprint(self) -> int:
        exact = json.dumps([self.source, self.sequence, self.measures], sort_keys=True)
        return int.from_bytes(hashlib.sha256(exact.encode()).digest()[: _FINGERPRINT_BITS // 8])


def add_entry(row: ViewRow, entry: RowEntry) -> None:
    """Count a source in."""
    _add(row, entry, 1)


def remove_entry(row: ViewRow, entry: RowEntry) -> None:
    """Count a source out."""
    _add(row, entry, -1)


def _add(row: ViewRow, entry: RowEntry, sign: int) -> None:
    row.counts = _without_zero(entry.kind, row.counts, row.counts.get(entry.kind, 0) + sign)
    for measure, value in entry.measures.items():
        if not isinstance(value, str):
            row.sums = _add_to_sum(row.sums, measure, _number(value), sign)
    prints = int(row.fingerprint, 16) + sign * entry.fingerprint
    row.fingerprint = f"{prints % 2**_FINGERPRINT_BITS:x}"


def _without_zero(name: str, counts: Mapping[str, int], count: int) -> dict[str, int]:
    others = {kind: number for kind, number in counts.items() if kind != name}
    return {**others, name: count} if count else others


def _add_to_sum(
    sums: Mapping[str, Sequence[Any]], measure: str, value: int | Fraction, sign: int
) -> dict[str, Any]:
    many, total, squares = sums.get(measure, (0, 0, 0))
    remaining = {name: stored for name, stored in sums.items() if name != measure}
    if many + sign == 0:
        return remaining
    changed = [
        many + sign,
        _stored(_loaded(total) + sign * value),
        _stored(_loaded(squares) + sign * value * value),
    ]
    return {**remaining, measure: changed}


def _number(value: float) -> int | Fraction:
    return value if isinstance(value, int) else Fraction(value)


def _stored(number: int | Fraction) -> int | str:
    return int(number) if number.denominator == 1 else str(number)


def _loaded(stored: int | str) -> int | Fraction:
    return Fraction(stored) if isinstance(stored, str) else stored


@dataclass(frozen=True)
class Row:
    """A row as a reader sees it.

    `counts` says how many sources of each kind are in it. Numbers are exact until they are
    divided; a measure that no source has is 0, its mean and variance None.
    """

    name: RowName
    counts: Mapping[str, int]
    sums: Mapping[str, Sequence[Any]]
    applied: datetime.datetime
    kind: str = ""  # The view's own kind of source; others are joined to it.

    @classmethod
    def of(cls, entity: ViewRow, kind: str = "") -> Row:
        """Return what an entity says."""
        _, text = table_and_row(entity.key)
        return cls(row_name(text), entity.counts, entity.sums, entity.applied, kind)

    @property
    def count(self) -> int:
        """How many sources of the view's own kind there are."""
        return self.counts.get(self.kind, 0)

    def sum(self, measure: str) -> float:
        """Return the sum, a whole number if it is one."""
        return _plain(self._known(measure)[1])

    def mean(self, measure: str) -> float | None:
        """Return the mean over the sources that have the measure."""
        many, total, _ = self._known(measure)
        return float(Fraction(total) / many) if many else None

    def variance(self, measure: str) -> float | None:
        """Return the variance over the sources that have the measure."""
        many, total, squares = self._known(measure)
        return float(Fraction(squares) / many - (Fraction(total) / many) ** 2) if many else None

    def _known(self, measure: str) -> tuple[int, int | Fraction, int | Fraction]:
        many, total, squares = self.sums.get(measure, (0, 0, 0))
        return many, _loaded(total), _loaded(squares)


def _plain(number: int | Fraction) -> float:
    return int(number) if number.denominator == 1 else float(number)
