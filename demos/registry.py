"""What the demos make of the pipelines: the app's own registry."""

from __future__ import annotations

from demos.grades import comparison as comparisons
from demos.grades import students as grades
from demos.invitations import parties as invitations
from demos.sums import load as sum_loads
from demos.sums.sums import add_up
from pipelines.registry import Registry

APP = Registry(
    *(invitations.IMPORT, invitations.TELL),
    *(grades.ADD_MANY, grades.IMPORT, grades.BUILDS, comparisons.FILL, comparisons.measure),
    *(add_up, sum_loads.begin, sum_loads.write),
)
