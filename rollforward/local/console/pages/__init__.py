"""The console's pages: each a GET that shows and POSTs that act and redirect back.

| page      | shows                                     | acts                        |
| /         | services, load, what needs attention      |                             |
| /queues   | state, load and limits of each queue      | pause, resume, purge        |
| /tasks    | tasks of any state, one with its attempts | run now, retry, delete      |
| /latency  | latency and error rate, by task or queue   |                             |
| /workers  | what the workers do now                   |                             |
| /attempts | attempts of a run's tasks on a time axis  |                             |
| /runs     | leads to the console of the app           |                             |
| /outbox   | likewise                                  |                             |
| /dead     | likewise                                  |                             |
| /data     | what is stored, by kind and key           | change a property, export   |
| /limits   | how near the app came to the limits       |                             |
| /costs    | what routes and tasks cost, in dollars    |                             |
| /logs     | the newest lines of all services          |                             |
| /traces   | the newest traces, one as a waterfall     |                             |
| /mail     | received mail                             | clear                       |
| /cron     | schedules and last results                | run now, pause, resume      |
| /faults   | fault rules, mail faults                  | add, remove, kill a worker  |
"""

from aiohttp import web

from rollforward.local.console.frame import Section
from rollforward.local.console.pages.app_console import AppConsole
from rollforward.local.console.pages.attempts import Attempts
from rollforward.local.console.pages.bulk import BulkActions
from rollforward.local.console.pages.cron import CronJobs
from rollforward.local.console.pages.data import Data
from rollforward.local.console.pages.faults import Faults
from rollforward.local.console.pages.figures.costs import Costs
from rollforward.local.console.pages.figures.latency import Latency
from rollforward.local.console.pages.figures.limits import Limits
from rollforward.local.console.pages.figures.workers import Workers
from rollforward.local.console.pages.logs import Logs
from rollforward.local.console.pages.mail import Mail
from rollforward.local.console.pages.overview import Overview
from rollforward.local.console.pages.queues import Queues
from rollforward.local.console.pages.tasks import Tasks
from rollforward.local.console.pages.traces import Traces
from rollforward.local.console.screen import Screen

_SECTIONS: list[type[Section]] = [
    Overview,
    Queues,
    Tasks,
    BulkActions,
    Latency,
    Workers,
    Attempts,
    AppConsole,
    Data,
    Limits,
    Costs,
    Logs,
    Traces,
    Mail,
    CronJobs,
    Faults,
]


def routes(screen: Screen) -> list[web.RouteDef]:
    """Return the routes of all pages."""
    return [route for section in _SECTIONS for route in section(screen).routes()]
