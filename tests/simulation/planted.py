"""Bugs that are planted in the app or in the library, and the faults by which each shows.

Each takes away a guard by which a promise holds.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import requests
from google.cloud import ndb
from google.cloud.ndb.context import TransactionOptions

from rollforward.batches import completion, policy
from rollforward.batches.entities import DONE
from rollforward.continuations.pages import attempt
from rollforward.counters import Counter, gathered
from rollforward.flask.endpoints import tasks
from rollforward.flows import Steps
from rollforward.flows.steps.undoing import Undos
from rollforward.fork_join import fold as folding
from rollforward.materialized_views.catalog import Catalog
from rollforward.outbox import pattern
from rollforward.outbox import relay as relaying
from rollforward.runtime import Clients
from rollforward.streams.exchange import ingest
from rollforward.streams.storage.remote_calls import Read
from rollforward.tasks import Reject, Retry, Unavailable
from tests.simulation.shop import app, payments, receipts
from tests.simulation.shop.payments import Payments
from tests.simulation.shop.stream import OrdersHeldById, ReleasedOrders

# Seeds of schedules: without a deployment, with one by which a task of the second version comes to
# a process of the first, with one while the stream has state, with one between two looks, with
# faults after the end of the day, with a payment service that says how long to wait, and with one
# that works longer than a process of the first version waits; and with threads that meet.
PLAIN, UNTIMELY, HOLDING, BETWEEN, LATE, ASKED_TO_WAIT, MIXED = 0, 135, 21, 16, 1, 2, 1171
THREADED = 58


class Plant(NamedTuple):
    """A bug, and the faults by which it shows; without any, its schedule is enough.

    Attributes:
        faults: Of each its kind, and a part of the trace of the calls at which it may strike: the
            last one at any of them, the others at the first.
        part: Of an order, the only one.
        seed: Of the schedule.
    """

    plant: Callable[[], AbstractContextManager[Any]]
    part: str
    faults: Sequence[tuple[str, str]]
    seed: int = PLAIN


def _unguarded_order() -> Any:
    return mock.patch.object(app, "is_placed", return_value=False)


def _early_callback() -> Any:
    return mock.patch.object(policy, "is_over", lambda state: state.sealed and state.waiting <= 1)


def _end_counted_twice() -> Any:
    def count(state: Any, page: Any, end: Any) -> bool:
        page.end(end.position, DONE, state.generation)
        state.done += 1
        return True

    return mock.patch.object(completion, "count", count)


def _row_deleted_first(module: Any = relaying) -> Any:
    relay = module.relay

    def delete_and_relay(clients: Any, rows: Sequence[Any]) -> Any:
        ndb.delete_multi([row.key for row in rows])
        return relay(clients, rows)

    return mock.patch.object(module, "relay", delete_and_relay)


def _row_deleted_first_in_sweeps() -> Any:
    return _row_deleted_first(sys.modules["rollforward.outbox.sweep"])


def _increment_without_key() -> Any:
    increment = Counter.increment

    def unkeyed(counter: Counter, clients: Any, key: str, **options: Any) -> Any:
        options.pop("idempotency_key", None)
        return increment(counter, clients, key, **options)

    return mock.patch.object(Counter, "increment", unkeyed)


def _no_sweep_of_the_outbox() -> Any:
    return mock.patch.object(pattern, "sweep")


def _in_a_commit_of_its_own(owner: Any, name: str) -> Any:
    return mock.patch.object(owner, name, _independent(getattr(owner, name)))


def _independent(work: Callable[..., Any]) -> Callable[..., Any]:
    def apart(*arguments: Any) -> Any:
        independent = TransactionOptions.INDEPENDENT
        return ndb.transaction(lambda: work(*arguments), retries=0, propagation=independent)

    return apart


def _join_apart() -> Any:
    fold = folding._fold_here

    def fold_apart(clients: Any, queue: Any, packs: Any) -> Any:
        return fold(clients, replace(queue, join=_independent(queue.join)), packs)

    return mock.patch.object(folding, "_fold_here", fold_apart)


def _page_applied_apart() -> Any:
    return _in_a_commit_of_its_own(attempt._PageAttempt, "_applied")


def _sink_apart() -> Any:
    return _in_a_commit_of_its_own(ReleasedOrders, "write")


def _push_without_receipt() -> Any:
    def receipt(request: Any) -> Any:
        if request.receipt is None:
            return []
        [row] = yield Read([request.receipt])
        return [(request.receipt, row and row.version)]

    return mock.patch.object(ingest, "_receipt", receipt)


def _unknown_task_dropped() -> Any:
    return mock.patch.object(tasks, "_wait_for_a_version", return_value=("", 204))


def _count_left_behind() -> Any:
    return mock.patch.object(gathered, "take_shards", return_value=0)


def _nothing_for_the_next_table() -> Any:
    return mock.patch.object(Catalog, "tables", lambda catalog, view: [catalog.live(view)])


def _state_left_behind() -> Any:
    return mock.patch.object(OrdersHeldById, "upgrade", return_value={})


def _mailed_without_a_reply() -> Any:
    send = receipts.send_receipt

    def send_once(clients: Any, order: str) -> None:
        with contextlib.suppress(Unavailable):
            send(clients, order)

    return mock.patch.object(receipts, "send_receipt", send_once)


def _message_id_of_an_attempt() -> Any:
    numbers = itertools.count()
    return mock.patch.object(
        receipts, "message_id_of", lambda order: f"<{order}-{next(numbers)}@shop.invalid>"
    )


def _mailed_twice() -> Any:
    send = receipts.send_receipt

    def send_twice(clients: Any, order: str) -> None:
        for _ in range(2):
            send(clients, order)

    return mock.patch.object(receipts, "send_receipt", send_twice)


def _order_kept_by_the_process() -> Any:
    send = receipts.send_receipt

    def send_kept(clients: Clients, order: str) -> None:
        kept = clients.process_state.get_or_create("the order of this thread", dict[str, str])
        kept["order"] = order
        clients.cache.get("a call, at which other threads go on")
        send(clients, kept["order"])

    return mock.patch.object(receipts, "send_receipt", send_kept)


def _key_of_an_attempt() -> Any:
    numbers = itertools.count()
    return mock.patch.object(Steps, "key", lambda step, name: f"{name} {next(numbers)}")


def _refusal_tried_again() -> Any:
    return mock.patch.object(payments, "Reject", functools.partial(Retry, after_s=1_800))


def _lost_answer_taken_for_a_refusal() -> Any:
    charge = Payments.charge

    @functools.wraps(charge)
    def charge_once(service: Payments, bill: payments.Bill, key: str) -> payments.Charge:
        try:
            return charge(service, bill, key)
        except Unavailable as error:
            if isinstance(error.__cause__, requests.RequestException):
                raise Reject(str(error)) from error
            raise

    return mock.patch.object(Payments, "charge", charge_once)


def _retry_after_ignored() -> Any:
    return mock.patch.object(payments, "Retry", lambda text, after_s: Unavailable(text))


def _bill_of_the_moment() -> Any:
    def pay(step: Steps, order: str, cents: int, statement: str = "") -> payments.Charge:
        step.commit("bill", payments.bill, order, cents, statement)
        billed = payments.bill_of(order, cents, statement)
        service = step.clients.service(Payments)
        return step.outside("charge", service.charge, billed, step.key("charge"))

    return mock.patch.object(payments, "pay", pay)


def _no_undo() -> Any:
    return mock.patch.object(Undos, "run")


SEAL = "visitor: tasks CreateTask of /tasks/batches/simulated-days/completed"
SENDS = "mail-order: app smtp"
PAYS = "fulfilments: app http."
AUDIT, WORK, PUSH = "simulated-audit: ", "simulated-sales/work: ", "simulated-sales/push: "
PLANTS: Mapping[str, Plant] = {
    "unguarded-order": Plant(
        _unguarded_order, "revenue", [("crash-after", "visitor: datastore Commit")]
    ),
    "early-callback": Plant(
        _early_callback, "pack", [("pause-before:100", "pack-order: datastore Commit")]
    ),
    "end-counted-twice": Plant(
        _end_counted_twice, "pack", [("double:0", "pack-order: datastore Commit")]
    ),
    "row-deleted-first": Plant(
        _row_deleted_first, "mail", [("error:UNAVAILABLE", "visitor: tasks ")]
    ),
    "increment-without-key": Plant(
        _increment_without_key, "mail", [("double:0", "mail-order: datastore Commit")]
    ),
    "join-apart": Plant(
        _join_apart, "revenue", [("crash-after", "revenue/join: datastore Commit")]
    ),
    "no-sweep-of-the-outbox": Plant(
        _no_sweep_of_the_outbox, "mail", [("crash-before", "visitor: tasks ")]
    ),
    "no-sweep-of-the-outbox-after-the-seal": Plant(
        _no_sweep_of_the_outbox, "pack", [("crash-before", SEAL)], seed=LATE
    ),
    "row-deleted-first-in-sweeps": Plant(
        _row_deleted_first_in_sweeps,
        "mail",
        [("error:UNAVAILABLE", "visitor: tasks "), ("error:UNAVAILABLE", "sweeps: tasks ")],
        seed=LATE,
    ),
    "page-applied-apart": Plant(
        _page_applied_apart, "audit", [("error:ABORTED", f"{AUDIT}datastore Commit")]
    ),
    "sink-apart": Plant(_sink_apart, "stream", [("error:ABORTED", f"{WORK}datastore Commit")]),
    "push-without-receipt": Plant(
        _push_without_receipt, "stream", [("double:3700", f"{PUSH}datastore Commit")]
    ),
    "mailed-without-a-reply": Plant(_mailed_without_a_reply, "mail", []),
    "message-id-of-an-attempt": Plant(
        _message_id_of_an_attempt, "mail", [("reply-lost:UNAVAILABLE", f"{SENDS}.end")]
    ),
    "mailed-twice": Plant(_mailed_twice, "mail", []),
    "order-kept-by-the-process": Plant(_order_kept_by_the_process, "mail", [], seed=THREADED),
    "key-of-an-attempt": Plant(_key_of_an_attempt, "flow", [("reply-lost:UNAVAILABLE", PAYS)]),
    "refusal-tried-again": Plant(_refusal_tried_again, "flow", []),
    "lost-answer-taken-for-a-refusal": Plant(
        _lost_answer_taken_for_a_refusal, "flow", [("reply-lost:UNAVAILABLE", PAYS)]
    ),
    "retry-after-ignored": Plant(_retry_after_ignored, "flow", [], seed=ASKED_TO_WAIT),
    "bill-of-the-moment": Plant(_bill_of_the_moment, "flow", [("crash-before", PAYS)], seed=MIXED),
    "no-undo": Plant(_no_undo, "flow", []),
    "unknown-task-dropped": Plant(_unknown_task_dropped, "mail", [], seed=UNTIMELY),
    "count-left-behind": Plant(_count_left_behind, "look", [], seed=BETWEEN),
    "state-left-behind": Plant(_state_left_behind, "stream", [], seed=HOLDING),
    "nothing-for-the-next-table": Plant(_nothing_for_the_next_table, "mail", [], seed=BETWEEN),
}
