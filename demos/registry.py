"""What the demos make of the pipelines: the app's own registry."""

from __future__ import annotations

from demos.grades import comparison
from demos.grades import students as grades
from demos.invitations import parties as invitations
from demos.sums import load
from demos.sums.sums import add_up
from pipelines.registry import Registry

APP = Registry.of(
    [invitations.IMPORT, invitations.TELL, grades.ADD_MANY, grades.IMPORT, comparison.FILL],
    [comparison.measure, load.begin, load.write],
    [grades.BUILDS],
    [add_up],
)
