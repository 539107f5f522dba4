"""Advice for code without a context of Datastore; ndb's own error gives none.

Requests and tasks have a context. Scripts, threads of your own and tests must open one.
"""

from __future__ import annotations

from google.cloud.ndb.exceptions import ContextError

ADVICE = "open Datastore's context first: `with clients.context(): ...`"


def explain_missing_context() -> None:
    """Add the advice to ndb's error, in this process; call it once."""
    ContextError.__str__ = _hint


def _hint(error: BaseException) -> str:
    return f"no context is open in this thread: {ADVICE}"
