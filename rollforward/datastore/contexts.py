"""What to do where no context of Datastore is open: ndb's own error names none of our ways.

Requests and tasks have a context. A script, a thread of one's own and a test have to open one.
"""

from __future__ import annotations

from google.cloud.ndb.exceptions import ContextError

ADVICE = "open Datastore's context first: `with clients.context(): ...`"


def explain_missing_context() -> None:
    """Have ndb say so, in this process, for every call without a context; once is enough."""
    ContextError.__str__ = _advice


def _advice(error: BaseException) -> str:
    return f"no context is open in this thread: {ADVICE}"
