"""Contexts of Datastore: advice for code without one, and keys that are the same in each.

ndb's own error gives no advice.

Requests and tasks have a context. Scripts, threads of your own and tests must open one.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb
from google.cloud.ndb.context import get_context
from google.cloud.ndb.exceptions import ContextError

ADVICE = "open Datastore's context first: `with clients.context(): ...`"


def client_namespace() -> str:
    """Return the namespace of the client, for a query that looks there in any context."""
    return get_context().client.namespace or ""


def key_of_client(kind: type[ndb.Model], name: str) -> Any:
    """Return a key in the namespace of the client, where tasks and sweeps look.

    A context may have another one, as of a tenant.
    """
    return ndb.Key(kind, name, namespace=client_namespace())


def has_other_namespace() -> bool:
    """Return whether this thread's context has another namespace than its client."""
    return bool((get_context().get_namespace() or "") != client_namespace())


def explain_missing_context() -> None:
    """Add the advice to ndb's error, in this process; call it once."""
    ContextError.__str__ = _hint


def _hint(error: BaseException) -> str:
    return f"no context is open in this thread: {ADVICE}"
