"""The payment of an order, by a service that is asked over HTTP.

The order is billed, and its card charged, under one key however often it is asked. A service that
does not take the request now, or whose answer is lost, is asked again. A card that is refused is an
answer: the flow is undone, which cancels the bill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import requests

from rollforward.flows import Steps
from rollforward.tasks import Reject, Retry, Unavailable
from tests.simulation.shop.entities import BilledOrders, FinishedOrder, RefusedOrder, count_run
from tests.simulation.shop.stream import SHOP

TIMEOUT_S = 10.0  # Of connecting, and of each wait for a part of the answer.
Bill = dict[str, Any]
NOT_NOW = (409, 429, 500, 502, 503, 504)
CARD_REFUSED = 402


@dataclass(frozen=True)
class Charge:
    """A charge, as the service has noted it."""

    id: str
    cents: int


@dataclass(frozen=True)
class Payments:
    """The payment service, at a URL."""

    session: requests.Session
    url: str

    def charge(self, bill: Bill, key: str) -> Charge:
        """Charge a card, once for a key.

        Raises:
            Reject: the card is refused.
            Retry, Unavailable: not now; whether it was charged may be unknown.
            requests.HTTPError: the request is wrong.
        """
        headers = {"Idempotency-Key": key}
        try:
            answer = self.session.post(self.url, json=bill, headers=headers, timeout=TIMEOUT_S)
            if answer.ok:
                return Charge(**answer.json())
        except requests.RequestException as error:
            raise Unavailable(f"payments: {error}") from error
        raise error_of(answer)


def error_of(answer: requests.Response) -> Exception:
    """Return the error of an answer that is none of success."""
    text = f"payments: {answer.status_code} {answer.text}"
    if answer.status_code == CARD_REFUSED:
        return Reject(text)
    if answer.status_code not in NOT_NOW:
        return requests.HTTPError(text, response=answer)
    after_s = answer.headers.get("Retry-After")
    return Retry(text, after_s=float(after_s)) if after_s else Unavailable(text)


def bill(order: str, cents: int, statement: str) -> Bill:
    """Bill an order, and return what its card is charged with: this commits once.

    So all attempts send the same under their key, whichever version of the code makes them. The
    first version ignores a statement, also of an order that the second one has placed.
    """
    _add_bills(1, cents)
    return bill_of(order, cents, statement)


def bill_of(order: str, cents: int, statement: str) -> Bill:
    return {"order": order, "cents": cents} | ({"statement": statement} if statement else {})


def cancel_bill(order: str, cents: int) -> None:
    """Take the bill of an order back, and mark the order: its card is refused."""
    _add_bills(-1, -cents)
    count_run(RefusedOrder, order)


def _add_bills(bills: int, cents: int) -> None:
    row = BilledOrders.get_by_id(SHOP) or BilledOrders(id=SHOP)
    row.cents += cents
    row.bills += bills
    row.put()


def pay(step: Steps, order: str, cents: int, statement: str = "") -> Charge:
    """Bill an order and charge its card, in a flow.

    Args:
        statement: A line on the card's own bill; "": none.
    """
    billed = step.commit("bill", bill, order, cents, statement)
    step.undo_commit("cancel the bill", cancel_bill, order, cents)
    payments = step.clients.service(Payments)
    return step.outside("charge", payments.charge, billed, step.key("charge"))


def finish(order: str, charge: Charge) -> None:
    """Note that an order is done, and its charge."""
    row = FinishedOrder.get_by_id(order) or FinishedOrder(id=order)
    row.charge, row.cents = charge.id, charge.cents
    row.runs += 1
    row.put()
