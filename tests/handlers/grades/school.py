"""The school of the tests: its first student, and what its page and its store say."""

from __future__ import annotations

import re

from models.grades import Student
from tests.infra.world import World

ADA, LIST = "a" * 32, "1" * 32


STUDENT = {"id": ADA, "name": "Ada", "grade": "7", "points": "92"}


CHANGE = f"/grades/students/{ADA}/change"


DELETE = f"/grades/students/{ADA}/delete"


def stored(world: World) -> list[tuple[str, int, int]]:
    with world.context():
        students = Student.query().fetch()
    return sorted((student.name, student.grade, student.points) for student in students)


def bars(text: str) -> dict[int, int]:
    """Return the chart of a page, from the words that tell the same."""
    chart = text.partition("Students by grade:")[2].partition('"')[0]
    matches = re.findall(r"grade (\d+): ([\d\u202f]+)", chart)
    counts = {int(grade): int(count.replace("\u202f", "")) for grade, count in matches}
    return {grade: count for grade, count in counts.items() if count}
