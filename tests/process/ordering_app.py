"""An app whose page commits a task and answers with the id of its process."""

from __future__ import annotations

import os

from flask import Flask

import rollforward as rf
from rollforward.datastore.transactions import transact

app = Flask(__name__)


@rf.task
def pack(order: str) -> None:
    """Do nothing."""


@app.get("/order/<order_id>")
def place(order_id: str) -> str:
    """Place an order in a transaction."""
    transact(lambda: rf.enqueue(pack, pack.bind(order_id)))
    return str(os.getpid())


serve = rf.serve(app, pack)
