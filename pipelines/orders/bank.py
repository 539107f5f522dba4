"""A bank, which stands for a service outside: it is slow, and remembers the keys of its calls.

A call takes effect in the middle of its time, in a transaction of the bank's own. So a worker that
dies over a call may have been charged or not, and its flow cannot tell. A second call under the
same key finds what the first one did.
"""

from __future__ import annotations

from models.orders import DECLINED, HELD, REFUNDED, OrderCharge, charge_key
from rollforward.datastore import transact
from rollforward.runtime import Clients

# One card in so many is declined.
DECLINES_ONE_IN = 25


def charge(clients: Clients, sale: str, number: int, key: str, takes_ms: int) -> str:
    """Charge for an order, once for a key; return the number of the payment, "" if declined."""

    def body() -> bool:
        row = charge_key(sale, key).get()
        if row is None:
            is_declined = number % DECLINES_ONE_IN == DECLINES_ONE_IN - 1
            state = DECLINED if is_declined else HELD
            row = OrderCharge(
                key=charge_key(sale, key), number=number, state=state, asked=0, refunds=0
            )
        row.asked += 1
        row.put()
        return bool(row.state != DECLINED)

    clients.clock.sleep(takes_ms / 2000)
    is_paid = transact(body)
    clients.clock.sleep(takes_ms / 2000)
    return f"P-{key[:8]}" if is_paid else ""


def refund(clients: Clients, sale: str, key: str, takes_ms: int) -> None:
    """Give back what was charged under a key, once; nothing if nothing is held."""

    def body() -> None:
        row = charge_key(sale, key).get()
        if row is None:
            return
        row.refunds += 1
        if row.state == HELD:
            row.state = REFUNDED
        row.put()

    clients.clock.sleep(takes_ms / 2000)
    transact(body)
    clients.clock.sleep(takes_ms / 2000)
