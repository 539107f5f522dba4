"""The world of a test with the demo app in it: its mail relay, and the parts that the test adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import main
from handlers.settings import DemoSettings
from pipelines.invitations.mail import Mailer, SmtpMailer
from pipelines.registry import APP
from rollforward import testing
from rollforward.batches import TaskBatch
from rollforward.continuations import Job
from rollforward.counters import Counter
from rollforward.flows import Flow
from rollforward.fork_join import ForkJoin
from rollforward.lanes import Lane
from rollforward.local.services.mail import MailServer
from rollforward.materialized_views import ViewMaintenance, catalog
from rollforward.materialized_views import entities as materialized_views
from rollforward.pull_queues import PullQueue
from rollforward.registry import Registry
from rollforward.schedules.ticks import DeclaredSchedule
from rollforward.streams import Pipeline
from rollforward.tasks import Task
from rollforward.testing import services as testing_services
from rollforward.testing.injection import FaultPlan, FaultyWire
from rollforward.testing.opening import open_clients
from rollforward.testing.short_answers import RandomAnswers
from tests.infra.faults.mailer import FaultyMailer
from tests.infra.runs import soak

SWEEPS = (
    "/cron/continuations/sweep",
    "/cron/tasks/sweep",
    "/cron/outbox/sweep",
    "/cron/lanes/sweep",
    "/cron/materialized-views/sweep",
    "/cron/fork-join/sweep",
    "/cron/pull-queues/sweep",
    "/cron/counters/sweep",
    "/cron/batches/sweep",
    "/cron/flows/sweep",
    "/cron/schedules/sweep",
    "/cron/streams/sweep",
    "/cron/operations/sweep",
)
# The shape of the posts' query by their places, a repeated property.
UNCUT = [("Post", "places")]

# The tests of views write a catalog some thousand times, in all its copies. The stacks that run as
# processes have as many copies as are deployed.
DEPLOYED_REPLICAS = materialized_views.CATALOG_REPLICAS
materialized_views.CATALOG_REPLICAS = catalog.CATALOG_REPLICAS = 3


@dataclass(frozen=True, kw_only=True)
class Services(testing_services.Services):
    """The services beside the tests, a mail relay among them."""

    mail: MailServer


@dataclass
class World(testing.World):
    """The demo app in a namespace of its own."""

    services: Services
    jobs: Sequence[Job[Any, Any]] = ()
    tasks: Sequence[Task[Any]] = ()
    builds: Sequence[ViewMaintenance] = ()
    fork_joins: Sequence[ForkJoin[Any]] = ()
    pull_queues: Sequence[PullQueue] = ()
    counters: Sequence[Counter] = ()
    batches: Sequence[TaskBatch] = ()
    streams: Sequence[Pipeline] = ()
    schedules: Sequence[DeclaredSchedule] = ()
    flows: Sequence[Flow[Any]] = ()
    lanes: Sequence[Lane] = ()
    # Whether a lane can look its tasks up: then only registered tasks can be enqueued.
    knows_paths: bool = False
    plan: FaultPlan = field(default_factory=FaultPlan)

    sweep_paths = SWEEPS

    def __post_init__(self) -> None:
        self.settings = settings_for(self.services)
        answers = RandomAnswers(
            has_snapshots=self.services.datastore_kind == "firestore",
            seed=soak.SEED if soak.IS_SOAK else "",
            uncut=UNCUT,
        )
        wire = FaultyWire(self.plan, answers.ask)
        own = (*self.jobs, *self.tasks, *self.builds, *self.fork_joins, *self.pull_queues)
        own = (*own, *self.counters, *self.batches, *self.streams, *self.schedules, *self.flows)
        registry = Registry(*APP.declared, *own, *self.lanes)
        smtp = SmtpMailer(self.settings.smtp_host, self.settings.smtp_port, self.settings.mail_from)
        mailer = FaultyMailer(smtp, self.plan)
        clients = open_clients(
            *(self.services, self.plan, wire),
            app_services={Mailer: mailer},
            task_paths=registry.tasks if self.lanes or self.knows_paths else None,
        )
        app = main.create_app(self.settings, clients, registry)
        app.testing = False
        super().__init__(self.services, app, clients, registry, wire)


def settings_for(services: Services) -> DemoSettings:
    """Return settings as `make run` would give them."""
    return DemoSettings(
        **services.settings(),
        smtp_host="127.0.0.1",
        smtp_port=int(services.mail.address.rpartition(":")[2]),
        mail_from="Rollforward <invitations@demo.example>",
    )
