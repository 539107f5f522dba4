"""An order as a flow, for the tests: its stock, its payments outside, its courier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from google.cloud import ndb

from rollforward.flows import RetryPolicy, Steps, flow
from rollforward.runtime import Clients
from rollforward.tasks import task
from rollforward.tasks.errors import Reject

DAY_S = 24 * 3600.0
SWEEP = "/cron/flows/sweep"


class FlowStock(ndb.Model):
    """How many pieces of an item were taken: each reservation takes one."""

    taken = ndb.IntegerProperty(indexed=False, default=0)


class FlowMail(ndb.Model):
    """A mail that was sent by a task: a row for each."""

    order = ndb.TextProperty()


@dataclass
class Bank:
    """A service outside: it charges once for a key, and counts how often it was asked."""

    charged: set[str] = field(default_factory=set)
    refunded: set[str] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    items: dict[str, str] = field(default_factory=dict)  # By the key of their charge.
    before: Callable[[str], None] = lambda verb: None
    after: Callable[[str], None] = lambda verb: None

    def charge(self, key: str) -> str:
        self.asked["charge"] += 1
        self.before("charge")
        self.charged.add(key)
        self.after("charge")
        return f"payment {key[:6]}"

    def refund(self, key: str) -> None:
        self.asked["refund"] += 1
        self.before("refund")
        self.refunded.add(key)
        self.after("refund")

    @property
    def held(self) -> set[str]:
        """The charges that were not given back."""
        return self.charged - self.refunded


BANK = Bank()


def charge(key: str) -> str:
    return BANK.charge(key)


def charge_for(item: str, key: str) -> str:
    """Charge for one item; the bank tells whose charge it is."""
    BANK.items[key] = item
    BANK.asked[item] += 1
    return BANK.charge(key)


def refund(key: str) -> None:
    BANK.refund(key)


def reserve(item: str) -> int:
    row = FlowStock.get_by_id(item) or FlowStock(id=item)
    row.taken += 1
    row.put()
    return int(row.taken)


def release(item: str) -> None:
    row = FlowStock.get_by_id(item)
    row.taken -= 1
    row.put()


@task("/tasks/tests/flow-mail", queue="default")
def mail(clients: Clients, order: str, number: int) -> int:
    """Send a mail of an order; return its number."""
    FlowMail(id=f"{order}-{number}", order=order).put()
    return number


@flow("test-orders", members=[mail], retries=RetryPolicy(attempts=4))
def order(step: Steps, item: str, mails: int = 2) -> str:
    """Reserve, charge, wait for the courier, sleep, and send mails; or undo."""
    number = step.commit("reserve", reserve, item)
    step.undo_commit("release", release, item)
    key = step.key("charge")
    paid = step.outside("charge", charge, key)
    step.undo("refund", refund, key)
    came = step.wait_for("courier", timeout_s=3 * DAY_S)
    if came is None:
        raise Reject("no courier came")
    step.sleep("to try it on", days=45)
    done = step.batch("mails", [(mail, mail.bind(step.flow_id, n)) for n in range(mails)])
    return f"{number}, {paid}, {came.payload}, {done.done} mails"


@flow("test-quick-orders", members=[mail], retries=RetryPolicy(attempts=50, longest_s=5))
def quick_order(step: Steps, item: str) -> str:
    """Do all that `order` does within a minute, and reject what the courier did not bring."""
    number = step.commit("reserve", reserve, item)
    step.undo_commit("release", release, item)
    key = step.key("charge")
    paid = step.outside("charge", charge_for, item, key)
    step.undo("refund", refund, key)
    came = step.wait_for("courier", timeout_s=3 * DAY_S)
    if came is None or came.payload is None:
        raise Reject("no courier came")
    step.sleep("to try it on", seconds=5)
    done = step.batch("mails", [(mail, mail.bind(step.flow_id, n)) for n in range(2)])
    return f"{number}, {paid}, {came.payload}, {done.done}"
