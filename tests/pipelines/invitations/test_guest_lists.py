"""Guest lists as people have them: every row that can be read is, whatever stands beside it."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.invitations.guest_lists import MAX_NAME_CHARS, GuestRow, columns_of, guest_rows
from rollforward.continuations.csv_source import (
    GONE,
    MAX_BYTES,
    MAX_ROW_BYTES,
    BadFileError,
    normalized,
)
from rollforward.continuations.sources import Span
from rollforward.continuations.upload_entities import UploadGoneError


def rows_of(content: bytes | str, size: int = 1000, chunk: int = 65_536) -> list[GuestRow]:
    """Read a file in pages of some size, from chunks of some size."""
    content = normalized(content.encode() if isinstance(content, str) else content)

    def chunks_from(offset: int) -> list[bytes]:
        first = chunk - offset % chunk
        cuts = [offset, *range(offset + first, len(content), chunk), len(content)]
        return [content[a:b] for a, b in itertools.pairwise(cuts) if a < b]

    source = guest_rows(chunks_from, columns_of(content))
    [span] = source.split(8)
    rows: list[GuestRow] = []
    position: str | None = span.after
    while position is not None:
        page = source.read(Span(after=position), size)
        assert len(page.items) <= size
        assert list(source.load(page.load_from, page.names)) == list(page.items)
        rows += [row for row in page.items if row is not None]
        position = page.next
    return rows


def guests(content: bytes | str) -> list[tuple[str, str]]:
    """Return names and addresses of the rows that could be read."""
    return [(row.name, row.address) for row in rows_of(content) if not row.problem]


def problems(content: bytes | str) -> dict[int, str]:
    return {row.line: row.problem for row in rows_of(content) if row.problem}


ANN_AND_BOB = [("Ann", "ann@example.com"), ("Bob", "bob@example.com")]
SAME = {
    "plain": "name,email\nAnn,ann@example.com\nBob,bob@example.com\n",
    "no line end at the end": "name,email\nAnn,ann@example.com\nBob,bob@example.com",
    "CRLF": "name,email\r\nAnn,ann@example.com\r\nBob,bob@example.com\r\n",
    "lone CR": "name,email\rAnn,ann@example.com\rBob,bob@example.com\r",
    "BOM": "\ufeffname,email\nAnn,ann@example.com\nBob,bob@example.com\n",
    "BOM, no header": "\ufeffAnn,ann@example.com\nBob,bob@example.com\n",
    "no header": "Ann,ann@example.com\nBob,bob@example.com\n",
    "address first": "ann@example.com,Ann\nbob@example.com,Bob\n",
    "columns turned round": "email,name\nann@example.com,Ann\nbob@example.com,Bob\n",
    "more columns": "id,e-mail,x,full name\n1,ann@example.com,,Ann\n2,bob@example.com,y,Bob\n",
    "semicolons": "name;email\nAnn;ann@example.com\nBob;bob@example.com\n",
    "tabs": "name\temail\nAnn\tann@example.com\nBob\tbob@example.com\n",
    "capitals": "NAME,E-Mail\nAnn,ann@example.com\nBob,bob@example.com\n",
    "Japanese header": "氏名,メールアドレス\nAnn,ann@example.com\nBob,bob@example.com\n",
    "blanks": " name , email \n  Ann  ,  ann@example.com \n Bob,bob@example.com\n",
    "blank lines": "\nname,email\n\n\nAnn,ann@example.com\n   \n,,\nBob,bob@example.com\n\n",
    "quotes": '"name","email"\n"Ann","ann@example.com"\n"Bob", "bob@example.com"\n',
}


@pytest.mark.parametrize("content", SAME.values(), ids=SAME)
def test_the_same_guests_in_every_form(content: str) -> None:
    """However a program wrote the file, the same two people are in it."""
    assert guests(content) == ANN_AND_BOB
    assert problems(content) == {}


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ('"Doe, Ann"', "Doe, Ann"),
        ('"Ann ""Annie"" Doe"', 'Ann "Annie" Doe'),
        ('"Ann\nDoe"', "Ann Doe"),
        ('"Ann\r\n\r\nDoe"', "Ann Doe"),
        ("佐藤　花子", "佐藤 花子"),
        ("👩‍👩‍👧", "👩‍👩‍👧"),
        ('Ann "Annie" Doe', 'Ann "Annie" Doe'),
        ("Ann\x00\x07Doe", "Ann Doe"),
        ("Ann\x85\u2028Doe", "Ann Doe"),
        ("", "ann"),
        ('""', "ann"),
        ("x" * MAX_NAME_CHARS, "x" * MAX_NAME_CHARS),
    ],
)
def test_names_as_they_come(cell: str, name: str) -> None:
    """Commas, quotes, line breaks and any script; what cannot stand in a header is a blank."""
    content = f"{'Bob,bob@example.com' + chr(10) * 1}{cell},ann@example.com\n"
    padding = "" if "\x00" not in cell else "x,x@example.com\n" * 5_000

    assert guests(padding + content)[-2:] == [("Bob", "bob@example.com"), (name, "ann@example.com")]


def test_an_address_alone_is_a_guest() -> None:
    """A file of one column: the name is what stands before the @."""
    assert guests("email\nann@example.com\n") == [("ann@example.com", "ann@example.com")]
    assert guests("ann@example.com\n") == [("ann@example.com", "ann@example.com")]


def test_an_address_of_another_script_gets_its_ascii_form() -> None:
    """A domain in Japanese is written as mail needs it; a local part in it cannot be."""
    assert guests("Ann,ann@日本語.jp\n") == [("Ann", "ann@xn--wgv71a119e.jp")]
    assert "1" in str(problems("佐藤,花子@example.jp\n"))


BAD_ROWS = {
    "no address": "Ann",
    "empty address": "Ann,",
    "no at": "Ann,ann.example.com",
    "two ats": "Ann,ann@x@example.com",
    "blank in it": "Ann,ann smith@example.com",
    "no domain": "Ann,ann@",
    "header injection": '"Ann","ann@example.com\nBcc: eve@example.com"',
    "two addresses": 'Ann,"ann@example.com,eve@example.com"',
    "long name": "x" * (MAX_NAME_CHARS + 1) + ",ann@example.com",
    "long address": "Ann," + "x" * 300 + "@example.com",
    "very long address": "Ann," + "x." * 8_000 + "@example.com",
    "very long row": "Ann,ann@example.com," + "x" * MAX_ROW_BYTES,
    "text behind a quote": '"Ann" Doe,ann@example.com',
    "open quote": '"Ann,ann@example.com',
    "open quote at the end": 'Ann,"ann@example.com',
}


@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_costs_that_row_alone(row: str) -> None:
    """It is named by its line, with a short reason; those before and behind it are guests."""
    before = "name,email\nBob,bob@example.com\n"
    after = "Cid,cid@example.com\nDan,dan@example.com\n"

    found = problems(before + row + "\n" + after)

    assert list(found) == [3]
    assert len(found[3]) < 400
    assert [name for name, _ in guests(before + row + "\n" + after)] == ["Bob", "Cid", "Dan"]


def test_a_row_that_is_too_long_is_told_how_long_it_may_be() -> None:
    """In the unit in which people know the sizes of files."""
    [reason] = problems("name,email\n" + BAD_ROWS["very long row"] + "\n").values()

    assert "longer than 16 KiB" in reason


def test_a_row_that_is_not_utf_8_costs_that_row_alone() -> None:
    """One row in another encoding does not stop the file."""
    content = (
        "名前,メール\n".encode() + "佐藤,s@example.com\n".encode("cp932") + b"Bob,b@example.com\n"
    )

    assert problems(content) == {2: "not UTF-8 text"}
    assert guests(content) == [("Bob", "b@example.com")]


def test_an_open_quote_does_not_swallow_rows_up_to_one_that_is_not_utf_8() -> None:
    """Two bad rows cost two rows, not those between them."""
    content = b'Bob,b@example.com\n"Ann,a@example.com\nCid,c@example.com\n\xff\xfe,x@example.com\n'

    assert [name for name, _ in guests(content)] == ["Bob", "Cid"]
    assert problems(content) == {2: "a quote is opened and not closed", 4: "not UTF-8 text"}


def test_open_quotes_cost_their_own_rows_each() -> None:
    """However many quotes stay open, and however long the file goes on."""
    rows = [
        f'"Ann {i},ann{i}@example.com' if i % 7 == 3 else f"Bob,bob{i}@example.com"
        for i in range(200)
    ]
    content = "\n".join(rows)

    assert len(guests(content)) + len(problems(content)) == 200
    assert {line % 7 for line in problems(content)} == {4}


def test_lines_are_counted_as_an_editor_counts_them() -> None:
    """Line breaks inside of quotes count; the row is named by its first line."""
    content = 'name,email\n"Ann\nDoe",ann@example.com\n\nBob,nothing\n'

    assert [row.line for row in rows_of(content)] == [2, 5]
    assert list(problems(content)) == [5]


BAD_FILES = {
    "empty": (b"", "empty"),
    "blank": (b" \r\n\t\n", "empty"),
    "BOM alone": (b"\xef\xbb\xbf", "no rows"),
    "commas": (b",,,\n,,\n", "no rows"),
    "UTF-16": ("name,email\nAnn,ann@example.com\n".encode("utf-16"), "UTF-8"),
    "UTF-16 without BOM": ("name,email\nAnn,ann@example.com\n".encode("utf-16-le"), "UTF-8"),
    "a zip": (b"PK\x03\x04\x14\x00\x06\x00", "UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "UTF-8"),
    "no address": (b"name,phone\nAnn,123\n", "mail addresses"),
    "a letter": (b"Dear all,\nplease come.\n", "mail addresses"),
    "noise": (bytes(range(1, 256)) * 10, "mail addresses"),
    "too large": (b"a@example.com\n" * (MAX_BYTES // 14 + 1), "10 MiB"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_no_guest_list_is_refused(content: bytes, message: str) -> None:
    """The visitor who uploads it is told why, and what to do."""
    with pytest.raises(BadFileError, match=message):
        columns_of(normalized(content))


def test_a_file_of_one_endless_line_is_refused() -> None:
    """A megabyte without a line end is no row, and costs no time to refuse."""
    with pytest.raises(BadFileError, match="mail addresses"):
        columns_of(normalized(b"a@" * 2**19))


cells = st.text(st.sampled_from('ab@.,;"\n\r\t 花é\ufeff'), max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(cells, min_size=1, max_size=3), max_size=12),
    st.integers(1, 5),
    st.integers(1, 40),
    st.booleans(),
)
def test_pages_of_any_size_hold_the_same_rows(
    table: list[list[str]], size: int, chunk: int, is_written_well: bool
) -> None:
    """A1: any cut into pages and chunks gives the rows that reading at once gives."""
    out = io.StringIO()
    out.write("name,email\n")
    if is_written_well:
        csv.writer(out).writerows(table)
    else:
        out.write("\n".join(",".join(row) for row in table))
    content = out.getvalue()

    at_once = rows_of(content)

    assert rows_of(content, size, chunk) == at_once
    assert len({row.line for row in at_once}) == len(at_once)


@settings(max_examples=40, deadline=None)
@given(
    st.binary(max_size=120).map(lambda junk: junk.replace(b"\0", b"?")),  # NUL is no text at all.
    st.integers(1, 4),
    st.integers(1, 30),
)
def test_bytes_of_any_kind_are_read_alike_in_pages(junk: bytes, size: int, chunk: int) -> None:
    """A1: not even noise makes rows depend on the page that they are read in."""
    content = b"name,email\nAnn,ann@example.com\n" + junk

    assert rows_of(content, size, chunk) == rows_of(content)


@pytest.mark.parametrize("shift", range(-2, 3))
def test_a_row_across_two_chunks_is_one_row(shift: int) -> None:
    """A row, and a letter of three bytes, may lie across the border of 64 KiB."""
    row = "佐藤 花子,hanako@example.com\n".encode()
    head = b"name,email\n"
    filler = b"Bob,bob@example.com\n"
    room = 65_536 - len(head) - 4 + shift
    padding = filler * (room // len(filler)) + b" " * (room % len(filler))

    found = rows_of(head + padding + row + filler)

    assert [row.name for row in found[-2:]] == ["佐藤 花子", "Bob"]
    assert not any(row.problem for row in found)


def test_a_page_reads_no_more_of_a_file_than_its_rows() -> None:
    """A file of 10 MiB has 160 chunks, and each page of it would read all that follow."""
    lines = [f"Ann {number},ann{number}@example.com\n".encode() for number in range(9)]
    read: list[bytes] = []

    def chunks_from(offset: int) -> Iterator[bytes]:
        for line in lines[b"".join(lines)[:offset].count(b"\n") :]:
            read.append(line)
            yield line

    source = guest_rows(chunks_from, columns_of(b"".join(lines)))
    read.clear()
    page = source.read(source.split(1)[0], 3)
    assert (len(page.items), read) == (3, lines[:4])
    read.clear()
    assert list(source.load(page.load_from, page.names)) == list(page.items)
    assert read == lines[:3]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("read", [0, 2])
def test_a_file_that_was_deleted_is_a_row_that_says_so(size: int, read: int) -> None:
    """Its walk ends, with a problem instead of silence; rows that were pinned have it, too."""
    lines = [b"Ann,ann@example.com\n", b"Bob,bob@example.com\n"]
    columns = columns_of(b"".join(lines))

    def chunks_from(offset: int) -> Iterator[bytes]:
        if rest := b"".join(lines[:read])[offset:]:
            yield rest
        raise UploadGoneError

    source = guest_rows(chunks_from, columns)
    rows: list[GuestRow | None] = []
    position: str | None = columns.start
    while position is not None:
        page = source.read(Span(after=position), size)
        rows += page.items
        position = page.next
    again = source.load("0:1", ["1", "2", "7"])

    assert [row.problem for row in rows if row] == [""] * read + [GONE]
    assert [(row.line, row.problem) for row in again if row] == [
        (1, "" if read else GONE),
        (2, "" if read else GONE),
        (7, GONE),
    ]
