"""CSV files as people have them, read in pages and line by line.

UTF-8 with or without BOM, commas or semicolons or tabs, quoted commas and newlines. A row that
cannot be read costs that row and no other; it is named by the line it starts on.

A position in a file is "<byte offset>:<line>", always at the start of a row.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rollforward.continuations.sources import Slice, Span
from rollforward.continuations.upload_entities import UploadGoneError

MAX_BYTES = 10 * 1024 * 1024
MAX_ROWS = 100_000
# A row longer than this has lost its closing quote, or is no row.
MAX_ROW_BYTES = 16_384
MAX_ROW_LINES = 50
# As many columns as the sheets of old had.
MAX_CELLS = 256
SNIFFED_BYTES = 65_536

UTF8_BOM = b"\xef\xbb\xbf"
OTHER_BOMS = (b"\xff\xfe", b"\xfe\xff")
DELIMITERS = (",", ";", "\t")
CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], " ")
UNCLOSED = "a quote is opened and not closed"
GONE = "the file was deleted 30 days after its upload; upload it again"


class Numbered(Protocol):
    """A parsed row, with the number of its line."""

    @property
    def line(self) -> int:
        """The number of the line on which it starts."""
        ...


R = TypeVar("R", bound=Numbered)


class BadFileError(ValueError):
    """The file cannot be read at all; its text says why."""


@dataclass(frozen=True)
class CsvRecord:
    """A row of the file: its cells or a problem, and the position after it."""

    line: int
    cells: Sequence[str]
    problem: str
    end: str


def normalized(content: bytes) -> bytes:
    """Return a file's bytes with line ends that can be read, or say why it cannot be read.

    Raises:
        BadFileError: empty, too large, or not text in UTF-8.
    """
    if not content.strip():
        raise BadFileError("the file is empty")
    if len(content) > MAX_BYTES:
        raise BadFileError(f"the file is larger than {MAX_BYTES // 2**20} MiB")
    if content.startswith(OTHER_BOMS) or b"\0" in content[:SNIFFED_BYTES]:
        raise BadFileError('this is not UTF-8 text; save it as "CSV UTF-8" and try again')
    line_end = b"\n" if b"\n" in content else b"\r"
    if content.count(line_end) > MAX_ROWS:
        raise BadFileError(f"the file has more than {MAX_ROWS} rows; cut it into several")
    return content.replace(b"\r", b"\n") if line_end == b"\r" else content


@dataclass(frozen=True)
class Start:
    """A file's first row, and how it is to be read."""

    delimiter: str
    position: str
    record: CsvRecord

    @property
    def cells(self) -> list[str]:
        """Its cells without blanks around them."""
        return [cell.strip() for cell in self.record.cells]


def start_of(content: bytes) -> Start:
    """Find a file's first row, and the delimiter of its cells.

    Raises:
        BadFileError: there is no row.
    """
    offset = len(UTF8_BOM) if content.startswith(UTF8_BOM) else 0
    first_line = content[offset : offset + SNIFFED_BYTES].split(b"\n", 1)[0]
    delimiter = max(DELIMITERS, key=first_line.decode(errors="replace").count)
    position = f"{offset}:1"
    record = next(records(_from(content), position, delimiter), None)
    if record is None:
        raise BadFileError("the file has no rows")
    return Start(delimiter, position, record)


def records_in(content: bytes) -> Iterator[CsvRecord]:
    """Yield the rows of a file in memory, one at a time.

    Raises:
        BadFileError: it cannot be read at all; before the first row.
    """
    content = normalized(content)
    start = start_of(content)
    yield from records(_from(content), start.position, start.delimiter)


def column_of(cells: Sequence[str], words: Sequence[str]) -> int | None:
    """Return the position of one of some words in a header, however it is capitalised."""
    folded = [cell.casefold() for cell in cells]
    return next((folded.index(word) for word in words if word in folded), None)


def _from(content: bytes) -> Callable[[int], Iterator[bytes]]:
    """Return a reader of a file in memory, in pieces."""
    return lambda offset: (
        content[start : start + SNIFFED_BYTES]
        for start in range(offset, len(content), SNIFFED_BYTES)
    )


def records(
    chunks_from: Callable[[int], Iterable[bytes]], start: str, delimiter: str
) -> Iterator[CsvRecord]:
    """Yield the rows of a file from a position on; blank lines are passed over.

    If the file was deleted, one more row says so, and is the last.

    Args:
        chunks_from: Yields the file's bytes from an offset on.
    """
    offset, line = _position(start)
    try:
        lines = _Lines(chunks_from(offset))
        while first_line := lines.next():
            record = _record(lines, first_line, offset, line, delimiter)
            offset, line = _position(record.end)
            if record.problem or any(cell.strip() for cell in record.cells):
                yield record
    except UploadGoneError:
        yield CsvRecord(line, [], GONE, f"{offset}:{line}")


def _record(lines: _Lines, first_line: bytes, offset: int, line: int, delimiter: str) -> CsvRecord:
    if len(first_line) > MAX_ROW_BYTES:
        problem = f"the row is longer than {MAX_ROW_BYTES // 1024} KiB"
        return CsvRecord(line, [], problem, f"{offset + len(first_line)}:{line + 1}")
    record_lines = [first_line]
    try:
        cells = _cells(lines, record_lines, delimiter)
    except UnicodeDecodeError:
        problem = "not UTF-8 text" if len(record_lines) == 1 else UNCLOSED
    except csv.Error as error:
        problem = UNCLOSED if "unexpected end" in str(error) else f"not CSV: {error}"
    else:
        if len(cells) <= MAX_CELLS:
            end = offset + sum(map(len, record_lines))
            return CsvRecord(line, cells, "", f"{end}:{line + len(record_lines)}")
        problem = f"the row has more than {MAX_CELLS} cells"
    # Only the first line is given up: what follows it may be sound.
    lines.push_back(record_lines[1:])
    return CsvRecord(line, [], problem, f"{offset + len(first_line)}:{line + 1}")


def _cells(lines: _Lines, record_lines: list[bytes], delimiter: str) -> Sequence[str]:
    """Return the cells of a row; its further lines are taken, each looked at once."""
    if b'"' not in record_lines[0]:
        return record_lines[0].decode().rstrip("\r\n").split(delimiter, MAX_CELLS)
    text = _lines_of(lines, record_lines)
    return next(csv.reader(text, delimiter=delimiter, strict=True, skipinitialspace=True), [])


def _lines_of(lines: _Lines, record_lines: list[bytes]) -> Iterator[str]:
    """Yield a row's lines as text, as long as its reader asks for more and it may have them."""
    yield record_lines[0].decode()
    while _can_grow(record_lines) and (next_line := lines.next()):
        record_lines.append(next_line)
        yield next_line.decode()


def _can_grow(record_lines: Sequence[bytes]) -> bool:
    return len(record_lines) < MAX_ROW_LINES and sum(map(len, record_lines)) < MAX_ROW_BYTES


def _position(position: str) -> tuple[int, int]:
    offset, line = position.split(":")
    return int(offset), int(line)


class _Lines:
    """The lines of a stream of chunks, with their line ends."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = b""
        self._read_to = 0
        self._returned: list[bytes] = []

    def next(self) -> bytes:
        """Return the next line; nothing at the end."""
        if self._returned:
            return self._returned.pop(0)
        while (end := self._buffer.find(b"\n", self._read_to) + 1) == 0:
            chunk = next(self._chunks, b"")
            self._buffer, self._read_to = self._buffer[self._read_to :] + chunk, 0
            if not chunk:
                end = len(self._buffer)
                break
        line = self._buffer[self._read_to : end]
        self._read_to = end
        return line

    def push_back(self, lines: Sequence[bytes]) -> None:
        self._returned[:0] = lines


class CsvSource(Generic[R]):
    """The rows of a stored file, as a continuation walks over them."""

    def __init__(
        self,
        chunks_from: Callable[[int], Iterable[bytes]],
        delimiter: str,
        start: str,
        row_of: Callable[[CsvRecord], R],
    ) -> None:
        """Describe the file.

        Args:
            chunks_from: Yields the file's bytes from an offset on.
            start: The position of its first row.
            row_of: Makes a row of a record or of its problem.
        """
        self._chunks_from = chunks_from
        self._delimiter = delimiter
        self._start = start
        self._row_of = row_of

    def split(self, max_spans: int) -> list[Span]:
        """One span: where a row starts is known only from the rows before it."""
        return [Span(after=self._start)]

    def read(self, span: Span, size: int) -> Slice[R]:
        """Return the first rows of a span."""
        rows: list[R] = []
        ends: list[str] = []
        for record in self._records(span.after):
            if len(rows) == size:
                break
            rows.append(self._row_of(record))
            ends.append(record.end)
        else:
            return Slice([str(row.line) for row in rows], rows, span.after, None)
        return Slice([str(row.line) for row in rows], rows, span.after, ends[-1])

    def load(self, load_from: str, names: Sequence[str]) -> Sequence[R | None]:
        """Return rows by the numbers of their lines, None for one that is gone."""
        numbers = {int(name) for name in names}
        rows: dict[int, R] = {}
        for record in self._records(load_from):
            if record.problem == GONE:
                missing = numbers - set(rows)
                rows |= {n: self._row_of(CsvRecord(n, [], GONE, "")) for n in missing}
            if record.line in numbers:
                rows[record.line] = self._row_of(record)
            if len(rows) == len(numbers):
                break
        return [rows.get(int(name)) for name in names]

    def _records(self, start: str) -> Iterator[CsvRecord]:
        return records(self._chunks_from, start, self._delimiter)


def cell(cells: Sequence[str], column: int) -> str:
    """Return a cell's text; a short row has none there.

    >>> cell(["a ", "b"], 0), cell(["a ", "b"], 7)
    ('a', '')
    """
    return cells[column].strip() if column < len(cells) else ""


def on_one_line(text: str) -> str:
    """Return a text whose line breaks and control characters have become blanks.

    >>> on_one_line("a\\r\\nb")
    'a b'
    """
    return " ".join(text.translate(CONTROLS).split())
