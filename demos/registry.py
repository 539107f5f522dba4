"""What the demos make of the pipelines: the app's own registry."""

from __future__ import annotations

from demos.grades import comparison
from demos.grades.imports import ADD_STUDENTS, IMPORT_STUDENTS
from demos.grades.views import BUILDS
from demos.invitations import parties as invitations
from demos.sums import load
from demos.sums.sums import add_up
from pipelines.registry import Registry

APP = Registry.of(
    [invitations.IMPORT, invitations.TELL, ADD_STUDENTS, IMPORT_STUDENTS, comparison.FILL_SCHOOL],
    [comparison.measure, load.begin, load.write],
    [BUILDS],
    [add_up],
)
