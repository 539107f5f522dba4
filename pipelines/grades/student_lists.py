"""Student lists: validation of a student, from a form or from a row of a CSV file.

Reader of the rows: rollforward/continuations/csv_source.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipelines.text import can_be_shown
from rollforward.continuations.csv_source import (
    BadFileError,
    CsvRecord,
    CsvSource,
    cell,
    column_of,
    start_of,
)

MAX_NAME_CHARS = 120
GRADES_TAUGHT = range(1, 13)
POINTS = range(101)
NAME_WORDS = ("name", "student", "full name", "名前", "氏名", "生徒")
GRADE_WORDS = ("grade", "class", "year", "学年", "年")
POINTS_WORDS = ("points", "score", "mark", "点", "点数", "得点")


class BadStudentError(ValueError):
    """These texts are no valid student; `errors` has the reason by field."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(errors.values()))
        self.errors = errors


@dataclass(frozen=True)
class StudentDetails:
    """Fields of a student."""

    name: str
    grade: int
    points: int


@dataclass(frozen=True)
class StudentColumns:
    """Layout of a file: columns, counted from 0, and the position of its first row."""

    delimiter: str
    name_column: int
    grade_column: int
    points_column: int
    start: str


@dataclass(frozen=True)
class StudentRow:
    """One row of a file: a student, or the problem with it."""

    line: int
    details: StudentDetails | None = None
    problem: str = ""


def details_of(name: str, grade: str, points: str) -> StudentDetails:
    """Return the details of a student from typed texts.

    Raises:
        BadStudentError: a field is invalid.

    >>> details_of(" 佐藤 花子 ", "7", "92")
    StudentDetails(name='佐藤 花子', grade=7, points=92)
    """
    name = name.strip()
    numbers = {"grade": _whole(grade, GRADES_TAUGHT), "points": _whole(points, POINTS)}
    errors = {
        "name": _name_problem(name),
        "grade": "" if numbers["grade"] is not None else _must_be("grade", GRADES_TAUGHT, grade),
        "points": "" if numbers["points"] is not None else _must_be("points", POINTS, points),
    }
    if problems := {field: error for field, error in errors.items() if error}:
        raise BadStudentError(problems)
    return StudentDetails(name, numbers["grade"] or 0, numbers["points"] or 0)


def _name_problem(name: str) -> str:
    if not name:
        return "name must not be empty"
    if len(name) > MAX_NAME_CHARS:
        return f"name must have at most {MAX_NAME_CHARS} characters, got {len(name):,}"
    return "" if can_be_shown(name) else "name must have no control characters"


def _whole(text: str, allowed: range) -> int | None:
    number = int(text) if re.fullmatch(r"\d{1,3}", text.strip()) else None
    return number if number in allowed else None


def _must_be(field: str, allowed: range, text: str) -> str:
    return f"{field} must be a whole number from {allowed[0]} to {allowed[-1]}, got {text!r:.40}"


def columns_of(content: bytes) -> StudentColumns:
    """Detect the layout of a file.

    Raises:
        BadFileError: the file has no columns for names, grades and points.
    """
    start = start_of(content)
    cells = start.cells
    if len(cells) >= 3 and all(re.fullmatch(r"\d{1,3}", cell) for cell in cells[1:3]):
        return StudentColumns(start.delimiter, 0, 1, 2, start.position)  # No header.
    name, grade, points = (
        column_of(cells, words) for words in (NAME_WORDS, GRADE_WORDS, POINTS_WORDS)
    )
    if name is None or grade is None or points is None:
        raise BadFileError(
            'name the columns "name", "grade" and "points" in the first row, '
            "or start with a row like: Ada, 7, 92"
        )
    return StudentColumns(start.delimiter, name, grade, points, start.record.end)


def student_rows(
    chunks_from: Callable[[int], Iterable[bytes]], columns: StudentColumns
) -> CsvSource[StudentRow]:
    """Return the rows of a stored file, as a continuation walks over them."""

    def read(record: CsvRecord) -> StudentRow:
        if record.problem:
            return StudentRow(record.line, problem=record.problem)
        return row_of(record.line, record.cells, columns)

    return CsvSource(chunks_from, columns.delimiter, columns.start, read)


def row_of(line: int, cells: Sequence[str], columns: StudentColumns) -> StudentRow:
    """Return the student in a row's cells, or the problem with it.

    >>> row_of(8, ["Ada", "13", "92"], StudentColumns(",", 0, 1, 2, "0:1")).problem
    "grade must be a whole number from 1 to 12, got '13'"
    """
    places = (columns.name_column, columns.grade_column, columns.points_column)
    try:
        return StudentRow(line, details_of(*(cell(cells, column) for column in places)))
    except BadStudentError as error:
        return StudentRow(line, problem=str(error))
