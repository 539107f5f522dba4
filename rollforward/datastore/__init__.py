"""The one way to Datastore: transactions, commits, lookups, queries.

`transact` runs a function in a transaction, and runs it again if it lost a race. Without a
transaction, patterns use `versions` (entities by compare-and-set, in one round trip), `bodies` (the
same for rows of one JSON body) and `increments` (numbers that the service adds to). All three build
their commits with `commit`, and read by the loops of `lookup` and `queries`.
"""

from rollforward.datastore.contexts import OtherNamespaceError
from rollforward.datastore.transactions import (
    NoContextError,
    NoTransactionError,
    Transaction,
    current_transaction,
    is_in_transaction,
    transact,
)

__all__ = [
    "NoContextError",
    "NoTransactionError",
    "OtherNamespaceError",
    "Transaction",
    "current_transaction",
    "is_in_transaction",
    "transact",
]
