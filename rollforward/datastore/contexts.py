"""Contexts of Datastore: advice for code without one, and keys that are the same in each.

ndb's own error gives no advice. A context may have another namespace than its client, as of a
tenant. Tasks are delivered, and sweeps read, in the namespace of the client: a pattern keeps its
rows there, or refuses the call.

Requests and tasks have a context. Scripts, threads of your own and tests must open one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.cloud import ndb
from google.cloud.ndb.context import get_context
from google.cloud.ndb.exceptions import ContextError

ADVICE = "open Datastore's context first: `with clients.context(): ...`"
# In place of ndb's words, which name an option that `transact` does not have.
NESTED = (
    "transactions may not be nested: write in this one, by a call that joins it if there is one, "
    "or make this call after the commit"
)


class OtherNamespaceError(Exception):
    """The context has another namespace than its client, where no task and no sweep would look."""


def client_namespace() -> str:
    """Return the namespace of the client, for a query that looks there in any context."""
    return get_context().client.namespace or ""


def key_of_client(kind: type[ndb.Model], name: str) -> Any:
    """Return a key in the namespace of the client, where tasks and sweeps look.

    A context may have another one, as of a tenant.
    """
    return ndb.Key(kind, name, namespace=client_namespace())


def context_namespace() -> str | None:
    """Return the namespace of this thread's context if it is not the client's, else None."""
    context = get_context(False)
    if context is None:
        return None
    namespace = context.get_namespace() or ""
    return None if namespace == (context.client.namespace or "") else namespace


@contextmanager
def own_namespace() -> Iterator[None]:
    """Use the namespace of the client, within a context that may have another one.

    In a transaction it stays that: all writes are committed together.
    """
    if context_namespace() is None:
        yield
        return
    context = get_context()
    with context.new(namespace=context.client.namespace).use():
        yield


def refuse_other_namespace(subject: str) -> None:
    """Refuse a call in a context of another namespace than its client's; costs no read.

    Args:
        subject: Begins the error's sentence, as "the counter likes".

    Raises:
        OtherNamespaceError: its rows would be where no task and no sweep looks.
    """
    namespace = context_namespace()
    if namespace is not None:
        raise OtherNamespaceError(
            f"{subject} cannot be used in a context of namespace {namespace!r}: its rows are in "
            f"the client's, {client_namespace()!r}. Call it in `with clients.own_namespace():`, "
            "and make the tenant a part of the key or id, and of the arguments"
        )


def refusing_key(subject: str, kind: type[ndb.Model], name: str) -> Any:
    """Return a key of a pattern that works in the client's namespace alone.

    Raises:
        OtherNamespaceError: the context has another namespace.
    """
    refuse_other_namespace(subject)
    return ndb.Key(kind, name)


def explain_missing_context() -> None:
    """Add the advice to ndb's error, in this process; call it once."""
    ContextError.__str__ = _hint


def _hint(error: BaseException) -> str:
    return f"no context is open in this thread: {ADVICE}"
