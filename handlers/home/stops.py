"""The stops of the tour, and for each demo its pattern, its code and its reading."""

from __future__ import annotations

from dataclasses import dataclass

from handlers.counters.stage import WORDS as COUNTER_TASKS
from handlers.grades.stage import WORDS as GRADE_TASKS
from handlers.invitations.stage import TASKS as INVITATION_TASKS
from handlers.numbers.stage import CHAIN, MEASURING
from handlers.orders.stage import FLOWS
from handlers.orders.stage import WORDS as ORDER_TASKS
from handlers.sums.stage import FOLDS, WRITERS
from handlers.tenants.stage import LANES, WORK
from handlers.tenants.stage import WORDS as TENANT_TASKS
from handlers.weblog.stage import TASKS as WEBLOG_TASKS
from handlers.zeitgeist.stage import TASKS as ZEITGEIST_TASKS


@dataclass(frozen=True)
class Step:
    """A stop of the tour: its demo, and what to look at or to press.

    Attributes:
        runs: Going there starts a run; otherwise it shows the run of the stop before.
    """

    demo: str
    title: str
    text: str
    runs: bool = True


@dataclass(frozen=True)
class Chapter:
    """Lesson of a demo: its pattern, its code and its reading.

    Attributes:
        did: The response of the pattern to a fault.
        paths: Beginnings of the routes of its tasks.
        code: Module and name of the lines that do it.
        reading: A document of the repository.
    """

    title: str
    pattern: str
    did: str
    paths: tuple[str, ...]
    code: tuple[str, str]
    reading: str


TOUR = (
    Step(
        "invitations",
        "The response does not wait",
        "A thousand mails are sent in the background. A dot is a guest, a box is a task.",
    ),
    Step(
        "invitations",
        "Break it",
        "Switch Errors on: one delivery in ten fails now. Its box is framed until the retry.",
    ),
    Step(
        "invitations",
        "Kill a worker",
        "Press Kill a worker. Its in-flight tasks are redelivered, and the timeline has a flag.",
    ),
    Step(
        "invitations",
        "Nothing is lost",
        "The summary below the timeline: mails, faults, workers killed, lost, duplicated.",
        runs=False,
    ),
    Step(
        "grades",
        "A chart that counts nothing",
        "A thousand students are added, and each bar follows. Then press Verify: drift 0.",
    ),
    Step(
        "sums",
        "Many writers, few writes",
        "A hundred items a second for one row. Press Flush memcached: the sum is exact.",
    ),
    Step(
        "counters",
        "One row becomes many",
        "Sixty clicks a second, in one row and in shards that are added as commits conflict.",
    ),
    Step(
        "orders",
        "Many steps, each once",
        "An order waits for the courier, or is undone. Kill a worker: no card is charged twice.",
    ),
    Step(
        "tenants",
        "A flood, and a fair share",
        "A floods the queue; the others begin soon. Press Flood, in one queue: they wait.",
    ),
    Step(
        "weblog",
        "When is a count final?",
        "Left of the watermark each window is complete. Kill a worker: the totals add up.",
    ),
    Step(
        "zeitgeist",
        "An anomaly, or late data",
        "A spike is reported at once. Press Delay tokyo: the watermark stops, no dip is reported.",
    ),
    Step(
        "numbers",
        "The cost of each operation",
        "A read, a write, a busy row and a task, measured on this stack within half a minute.",
    ),
)

CHAPTERS = {
    "invitations": Chapter(
        "Invitations",
        "continuations",
        "A page of guests commits its receipts every ten mails. A retry continues after the last "
        "receipt, and a page creates its successor by name, so a second create has no effect.",
        (INVITATION_TASKS,),
        ("pipelines.invitations.sending", "tell_guests"),
        "docs/concepts/continuations.md",
    ),
    "grades": Chapter(
        "Students by grade",
        "materialized views",
        "A student and the updates of the bars are one commit. An update applies once: late, "
        "repeated or reordered, the bar is the same.",
        tuple(GRADE_TASKS),
        ("pipelines.grades.views", "StudentsByGrade"),
        "docs/concepts/materialized-views.md",
    ),
    "sums": Chapter(
        "Sums",
        "fork-join queues",
        "Items are durable before their batch is folded, and a fold deletes what it adds up. "
        "memcached is a hint only: after a flush, a sweep finds the items in Datastore.",
        (WRITERS, FOLDS),
        ("pipelines.sums.sums", "add_up"),
        "docs/concepts/fork-join.md",
    ),
    "counters": Chapter(
        "Counters",
        "sharded counters",
        "A click and the receipt of its idempotency key are one commit, so a retry counts "
        "nothing. Shards are added when commits conflict, and merged when they stop.",
        tuple(COUNTER_TASKS),
        ("rollforward.counters.commits", "write"),
        "docs/concepts/counters.md",
    ),
    "orders": Chapter(
        "Orders",
        "flows",
        "A step’s writes and its result are one commit. A call whose worker died is in doubt, "
        "and is retried with the same idempotency key. A rejected flow is undone.",
        (FLOWS, *ORDER_TASKS),
        ("pipelines.orders.orders", "order"),
        "docs/concepts/flows.md",
    ),
    "tenants": Chapter(
        "Tenants",
        "lanes",
        "A task waits in the lane of its tenant, and each tenant has its turn. A claim whose "
        "worker died is taken away, and its tasks are run by another.",
        (LANES, WORK, *TENANT_TASKS),
        ("pipelines.tenants.rushes", "lane_of"),
        "docs/concepts/lanes.md",
    ),
    "weblog": Chapter(
        "Web log",
        "streams",
        "A commit takes records out of an inbox, updates the state and writes the results. A "
        "worker that takes over fences off the old one, so each record counts once.",
        (WEBLOG_TASKS,),
        ("pipelines.weblog.pipeline", "HITS"),
        "docs/concepts/streams.md",
    ),
    "zeitgeist": Chapter(
        "Zeitgeist",
        "anomaly detection on streams",
        "A spike is reported while its bucket is open, a dip only when the watermark has passed: "
        "until then a missing record may still arrive.",
        (ZEITGEIST_TASKS,),
        ("pipelines.zeitgeist.pipeline", "Watcher"),
        "docs/concepts/streams.md",
    ),
    "numbers": Chapter(
        "Numbers",
        "measured in tasks",
        "One task measures one operation after another, and stores the samples of each. A retry "
        "measures again what is not stored.",
        (MEASURING, CHAIN),
        ("pipelines.numbers.probes", "_timed"),
        "docs/performance.md",
    ),
}
