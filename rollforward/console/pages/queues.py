"""Changes of queues: pause, resume, rate, and purge after a look."""

from __future__ import annotations

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api import changes
from rollforward.console.api.changes import ChangeRefusedError
from rollforward.console.api.queries import number_of
from rollforward.console.pages.frame import Routes, go_to, page, render
from rollforward.flask.context import clients
from rollforward.operations.waiting import CannotListError, list_waiting
from rollforward.tasks.cloud_tasks import WaitingPage

SHOWN = 5


@page
def change_queue() -> ResponseReturnValue:
    """Pause or resume a queue, or set its rate."""
    form = request.form
    queue, verb, rate = (form.get(name, "").strip() for name in ("queue", "verb", "max_per_s"))
    if verb == "purge":
        raise ChangeRefusedError(400, "A queue is purged after a look at what it has.")
    changes.control_queue(queue, verb, number_of(rate, "max_per_s") if verb == "rate" else None)
    return go_to("/waiting", f"queue-{verb}")


@page
def confirm_purge() -> ResponseReturnValue:
    """Show the tasks of a queue, and ask for its name."""
    return _purge_page(request.args.get("queue", "").strip(), "")


@page
def purge_queue() -> ResponseReturnValue:
    """Purge a queue whose name was typed."""
    form = request.form
    queue, typed = form.get("queue", ""), form.get("typed", "").strip()
    if typed != queue:
        return _purge_page(queue, f"You typed “{typed}”. Nothing was purged.")
    changes.control_queue(queue, "purge")
    return go_to("/waiting", "queue-purge")


def _purge_page(queue: str, problem: str) -> ResponseReturnValue:
    if queue not in changes.queue_names():
        raise ChangeRefusedError(404, f"No task of this app goes to a queue “{queue:.100}”.")
    listed, denial = WaitingPage((), ""), ""
    try:
        listed = list_waiting(clients(), queue, limit=SHOWN)
    except CannotListError as error:
        denial = str(error)
    response = render(
        "purge.html",
        queue=queue,
        tasks=listed.tasks,
        is_cut=bool(listed.next_cursor),
        denial=denial,
        problem=problem,
    )
    response.status_code = 409 if problem else 200
    return response


ROUTES: Routes = (
    ("/queues/change", "POST", change_queue),
    ("/queues/purge", "GET", confirm_purge),
    ("/queues/purge", "POST", purge_queue),
)
