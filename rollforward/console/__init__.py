"""The console that an app mounts: what its tasks and patterns do, and how to help them.

    def may_enter(request: Request) -> rf.console.Role | None:
        return rf.console.Role.OPERATE if session.get("is_admin") else None

    rf.serve(app, registry, console=rf.Console(access=may_enter))

`access` is asked on each request; None is answered 404, as if nothing were there. READ changes
nothing on any route. Ready hooks: `iap` for people behind Identity-Aware Proxy, `oidc` for programs
with a token, `first_of` for both, `local` for the machine that `rollforward run` runs on.

Pages are below the prefix (`/rollforward/`), JSON is below `<prefix>/api/v1/` (api/). Both are
bounded: a page reads some sixty rows, however many there are. Forms carry CSRF tokens; the API
takes changes without cookies only. Each change is on record (`rollforward.operations.audit`).

Lost on failure: nothing; a change whose answer was lost is in the audit trail.
"""

from rollforward.console.access import Access, Caller, Role, first_of, iap, local, oidc
from rollforward.console.console import Console

__all__ = [
    "Access",
    "Caller",
    "Console",
    "Role",
    "first_of",
    "iap",
    "local",
    "oidc",
]
