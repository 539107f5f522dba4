"""Registry of the demo app: the jobs, views, counters, flows and streams that its demos declare."""

from __future__ import annotations

from pipelines.blog import samples
from pipelines.blog.posts import begin_deletion, delete_comments
from pipelines.blog.views import BUILDS as BLOG_BUILDS
from pipelines.blog.views import COMMENT_COUNTS
from pipelines.counters import load as click_load
from pipelines.counters.counters import WAYS
from pipelines.grades import comparison
from pipelines.grades.imports import add_listed_students, add_made_up_students
from pipelines.grades.views import BUILDS
from pipelines.invitations.imports import add_guests
from pipelines.invitations.sending import tell_guests
from pipelines.numbers.echo import echo
from pipelines.numbers.runs import measure_numbers
from pipelines.orders import orders
from pipelines.quilt.quilts import BATCHES as QUILT_BATCHES
from pipelines.run_sources import SOURCES
from pipelines.sums import load
from pipelines.sums.sums import add_up
from pipelines.tenants import rushes
from pipelines.weblog.pipeline import WEBLOG
from pipelines.zeitgeist.pipeline import ZEITGEIST
from pipelines.zeitgeist.player import play
from rollforward.registry import Registry

APP = Registry(
    *(add_guests, tell_guests),
    *(BUILDS, add_made_up_students, add_listed_students),
    *(comparison.FILL_SCHOOL, comparison.measure),
    *(add_up, load.begin, load.write),
    *(measure_numbers, echo),
    *(*WAYS.values(), click_load.begin, click_load.click),
    *(BLOG_BUILDS, COMMENT_COUNTS),
    *(samples.add_posts, samples.add_comments, begin_deletion, delete_comments),
    *QUILT_BATCHES,
    *(orders.order, orders.open_orders, orders.courier),
    *(*rushes.RULES.values(), rushes.flood, rushes.work),
    WEBLOG,
    *(ZEITGEIST, play),
    *SOURCES,
)
