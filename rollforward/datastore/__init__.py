"""The one way to Datastore: transactions, commits, rows.

`transact` runs a function in a transaction, again when another one was faster. Patterns also use
`commits` (inserts and compare-and-set in one round trip), `rows` (the same for many rows of one
text) and `increments` (numbers that the service adds to).
"""

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
    "Transaction",
    "current_transaction",
    "is_in_transaction",
    "transact",
]
