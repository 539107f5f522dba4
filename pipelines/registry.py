"""What the demos make of the pipelines: the app's own registry."""

from __future__ import annotations

from pipelines.blog import samples
from pipelines.blog.posts import DELETE_COMMENTS, delete_comments
from pipelines.blog.views import BUILDS as BLOG_BUILDS
from pipelines.blog.views import COMMENT_COUNTS
from pipelines.counters import load as click_load
from pipelines.counters.counters import WAYS
from pipelines.grades import comparison
from pipelines.grades.imports import ADD_STUDENTS, IMPORT_STUDENTS
from pipelines.grades.views import BUILDS
from pipelines.invitations.imports import IMPORT_GUESTS
from pipelines.invitations.sending import TELL_GUESTS
from pipelines.numbers.echo import echo
from pipelines.numbers.runs import MEASURE_NUMBERS
from pipelines.quilt.quilts import BATCHES as QUILT_BATCHES
from pipelines.sums import load
from pipelines.sums.sums import add_up
from pipelines.weblog.pipeline import WEBLOG
from pipelines.zeitgeist.pipeline import ZEITGEIST
from pipelines.zeitgeist.player import play
from rollforward.registry import Registry

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
