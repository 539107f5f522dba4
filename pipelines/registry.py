"""What the demos make of the pipelines: the app's own registry."""

from __future__ import annotations

from demos.blog import samples
from demos.blog.posts import DELETE_COMMENTS, delete_comments
from demos.blog.views import BUILDS as BLOG_BUILDS
from demos.blog.views import COMMENT_COUNTS
from demos.counters import load as click_load
from demos.counters.counters import WAYS
from demos.grades import comparison
from demos.grades.imports import ADD_STUDENTS, IMPORT_STUDENTS
from demos.grades.views import BUILDS
from demos.invitations.imports import IMPORT_GUESTS
from demos.invitations.sending import TELL_GUESTS
from demos.numbers.echo import echo
from demos.numbers.runs import MEASURE_NUMBERS
from demos.quilt.quilts import BATCHES as QUILT_BATCHES
from demos.sums import load
from demos.sums.sums import add_up
from demos.weblog.pipeline import WEBLOG
from demos.zeitgeist.pipeline import ZEITGEIST
from demos.zeitgeist.player import play
from pipelines.registry import Registry

APP = Registry(
    *(IMPORT_GUESTS, TELL_GUESTS),
    *(BUILDS, ADD_STUDENTS, IMPORT_STUDENTS, comparison.FILL_SCHOOL, comparison.measure),
    *(add_up, load.begin, load.write),
    *(MEASURE_NUMBERS, echo),
    *(*WAYS.values(), click_load.begin, click_load.click),
    *(BLOG_BUILDS, COMMENT_COUNTS),
    *(samples.ADD_POSTS, samples.ADD_COMMENTS, delete_comments, DELETE_COMMENTS),
    *QUILT_BATCHES,
    WEBLOG,
    *(ZEITGEIST, play),
)
