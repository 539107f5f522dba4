"""Authentication of callers of tasks, cron and pull queues: the queue, the scheduler, our workers.

On App Engine its front end strips X-AppEngine-* from outsiders, so the header proves the
caller there, and only there. Everywhere else a caller shows an OIDC token of our service
account. Any other caller gets the same empty 403 for every path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps

from flask import Response, request
from flask.typing import ResponseReturnValue

from rollforward.flask.context import request_notes, settings, wiring
from rollforward.flask.oidc import BadTokenError, CertsUnavailableError
from rollforward.flask.settings import APP_ENGINE
from rollforward.tasks.cloud_tasks import UrlTarget

log = logging.getLogger(__name__)

View = Callable[..., ResponseReturnValue]


def tasks_only(view: View) -> View:
    """Let only the queue in."""
    return _only(view, "X-AppEngine-QueueName")


def cron_only(view: View) -> View:
    """Let only the scheduler in."""
    return _only(view, "X-Appengine-Cron")


def operators_only(view: View) -> View:
    """Let only the scheduler in, and the accounts of METRICS_ACCOUNTS with a token."""
    return _only(view, "X-Appengine-Cron", admits_accounts=True)


def workers_only(view: View) -> View:
    """Let only programs in that hold a token of our service account, on every platform."""
    return _only(view, None)


def proved_account() -> str:
    """Return the account that this request's caller has proved."""
    return str(request_notes()["account"])


def is_proved() -> bool:
    """Return whether this request's caller has proved to be one of these."""
    return bool(request_notes().get("is_proved"))


def _only(view: View, app_engine_header: str | None, *, admits_accounts: bool = False) -> View:
    @wraps(view)
    def authenticated(*args: object, **kwargs: object) -> ResponseReturnValue:
        try:
            account = _authenticate(app_engine_header, admits_accounts)
        except BadTokenError as error:
            log.warning("refused %s %r: %r", request.method, request.path[:100], str(error))
            return Response(status=403)
        except CertsUnavailableError as error:
            log.warning("cannot verify callers: %s", error)
            return Response(status=503)
        request_notes().update(is_proved=True, account=account)
        return view(*args, **kwargs)

    return authenticated


def _authenticate(app_engine_header: str | None, admits_accounts: bool) -> str:
    """Return the account that the caller has proved, or how App Engine names it."""
    is_on_app_engine = settings().platform == APP_ENGINE
    if is_on_app_engine and app_engine_header and request.headers.get(app_engine_header):
        return app_engine_header
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    target = settings().target
    if scheme.lower() != "bearer" or not token:
        raise BadTokenError("no token")
    if admits_accounts and settings().metrics_accounts:
        return _verify_operator(token)
    if not isinstance(target, UrlTarget):
        raise BadTokenError("this app takes tasks from App Engine only")
    wiring().verifier.verify(token, audience=target.audience, account=target.service_account)
    return target.service_account


def _verify_operator(token: str) -> str:
    """Return the account of a token: one that may read the metrics, or our own."""
    target, audiences = settings().target, [settings().metrics_audience]
    accounts = {*settings().metrics_accounts}
    if isinstance(target, UrlTarget):
        audiences.append(target.audience)
        accounts.add(target.service_account)
    claims = wiring().verifier.claims(token, audiences)
    account = str(claims.get("email"))
    if account not in accounts:
        raise BadTokenError(f"account {account[:200]!r} is none that may")
    if claims.get("email_verified") is not True:
        raise BadTokenError("account not verified")
    return account
