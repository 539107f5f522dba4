"""Guest lists: CSV files of names and mail addresses, with or without a header.

Reader of the rows: rollforward/continuations/csv_source.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rollforward.continuations.csv_source import (
    BadFileError,
    CsvRecord,
    CsvSource,
    cell,
    column_of,
    on_one_line,
    start_of,
)

MAX_NAME_CHARS = 200
# No mail address is longer; checking a megabyte would take seconds.
MAX_ADDRESS_CHARS = 254
ADDRESS_WORDS = ("email", "e-mail", "mail", "address", "メール", "アドレス", "メールアドレス")
NAME_WORDS = ("name", "guest", "full name", "名前", "氏名", "お名前")


@dataclass(frozen=True)
class GuestColumns:
    """Layout of a file: columns, counted from 0, and the position of its first row."""

    delimiter: str
    name_column: int
    address_column: int
    start: str


@dataclass(frozen=True)
class GuestRow:
    """One row of a file: a guest, or the problem with it."""

    line: int
    name: str = ""
    address: str = ""
    problem: str = ""


def columns_of(content: bytes) -> GuestColumns:
    """Detect the layout of a file.

    Raises:
        BadFileError: no column holds mail addresses.
    """
    start = start_of(content)
    cells = start.cells
    addresses = [i for i, cell in enumerate(cells) if "@" in cell]
    if addresses:  # No header: this row is a guest.
        names = [i for i in range(len(cells)) if i != addresses[0]]
        name = names[0] if names else addresses[0]
        return GuestColumns(start.delimiter, name, addresses[0], start.position)
    address = column_of(cells, ADDRESS_WORDS)
    if address is None:
        raise BadFileError(
            'no column for mail addresses: name one "email" in the first row, '
            "or start with a row that holds an address"
        )
    name_column = column_of(cells, NAME_WORDS)
    return GuestColumns(
        start.delimiter, address if name_column is None else name_column, address, start.record.end
    )


def guest_rows(
    chunks_from: Callable[[int], Iterable[bytes]], columns: GuestColumns
) -> CsvSource[GuestRow]:
    """Return the rows of a stored file, as a continuation walks over them."""

    def read(record: CsvRecord) -> GuestRow:
        if record.problem:
            return GuestRow(record.line, problem=record.problem)
        return row_of(record.line, record.cells, columns)

    return CsvSource(chunks_from, columns.delimiter, columns.start, read)


def row_of(line: int, cells: Sequence[str], columns: GuestColumns) -> GuestRow:
    """Return the guest in a row's cells, or the problem with it.

    >>> row_of(7, ["Ann", "ann@example.com"], GuestColumns(",", 0, 1, "0:1"))
    GuestRow(line=7, name='Ann', address='ann@example.com', problem='')
    >>> row_of(8, ["Ann"], GuestColumns(",", 0, 1, "0:1")).problem
    'no mail address'
    """
    address = cell(cells, columns.address_column)
    # A name goes into a mail's header: line breaks and control characters become blanks.
    name = on_one_line(cell(cells, columns.name_column))
    if not address:
        return GuestRow(line, problem="no mail address")
    limits = (("name", name, MAX_NAME_CHARS), ("mail address", address, MAX_ADDRESS_CHARS))
    for field, text, limit in limits:
        if len(text) > limit:
            problem = f"{field} must have at most {limit} characters, got {len(text):,}"
            return GuestRow(line, problem=problem)
    # With the first address: the library and its tables take a while to load.
    from email_validator import EmailNotValidError, validate_email

    try:
        valid = validate_email(address, check_deliverability=False, allow_smtputf8=False)
    except EmailNotValidError as error:
        return GuestRow(line, problem=f"{address[:80]}: {error}")
    return GuestRow(line, name or valid.local_part, valid.ascii_email or valid.normalized)
