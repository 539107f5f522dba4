"""Faults that a page can ask the local platform for. Local only.

The platform listens on this machine alone; in a deployed app these routes are 404.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import requests
from flask import Blueprint, abort, flash, redirect, request
from flask.typing import ResponseReturnValue
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError

from handlers.shared.incidents import FaultRule
from handlers.shared.stage import Switches
from rollforward.flask.context import settings

bp = Blueprint("faults", __name__, url_prefix="/break-it")

TIMEOUT_S = 3.0
KILL_AFTER_S = 0.3
PAGES = re.compile(
    r"/invitations/[0-9a-f]{32}|/grades|/counters|/sums/[a-z][a-z0-9-]{0,39}"
    r"|/numbers(?:/[0-9a-f]{32})?"
    r"|/(?:quilt|orders|tenants)(?:/[0-9a-f]{32})?|/streams/weblog"
    r"|/zeitgeist"
)
# What the deliveries of a page's runs are asked for: a switch strikes at least one of them.
PATHS = {
    "/invitations": "/tasks/continuations/tell-guests",
    "/grades": "/tasks/",
    "/counters": "/tasks/counters-demo/click",
    "/sums": "/tasks/sums/write",
    "/numbers": "/tasks/numbers/echo",
    "/quilt": "/tasks/batches/quilt",
    "/orders": "/tasks/flows/orders",
    "/tenants": "/tasks/lanes/tenants",
    "/streams/weblog": "/tasks/streams/weblog/work",
    "/zeitgeist": "/tasks/streams/zeitgeist/",
}
# The names of faults, which the console has too.
NAMES = {
    "error": "Errors",
    "lose_response": "Lost responses",
    "duplicate": "Duplicates",
    "overlap": "Overlaps",
    "delay": "Delays",
    "reorder": "Reordering",
    "kill_worker": "Worker kills",
}
# What each switch asks for. Its `id` makes switching on twice the same as once.
SWITCHES: dict[str, dict[str, Any]] = {
    "errors": {"id": "page-errors", "kind": "error", "rate": 0.1},
    "lost": {"id": "page-lost", "kind": "lose_response", "rate": 0.1},
    "duplicates": {"id": "page-duplicates", "kind": "overlap", "rate": 0.2},
}


@bp.post("/<switch>/<any(on, off):to>")
def toggle(switch: str, to: str) -> ResponseReturnValue:
    """Switch a fault on or off, then go back to the page; off removes the console's rules, too."""
    rule = SWITCHES.get(switch) or abort(404)
    with _platform_expected():
        if to == "on":
            ask_platform("POST", "/api/v1/faults", rule)
            _strike_once(switch, _path_of(_back()))
        else:
            path = _path_of(_back())
            foreign = [r.id for r in rules_in_force() if _is_foreign(r, switch, (path,))]
            for rule_id in (rule["id"], f"{rule['id']}-once", *foreign):
                ask_platform("DELETE", f"/api/v1/faults/{quote(rule_id, safe='')}", {})
    return redirect(_back(), 303)


@bp.post("/worker/kill")
def kill_worker() -> ResponseReturnValue:
    """Kill one of this app's workers, maybe the one that handles this request: once it is over."""
    with _platform_expected():
        ask_platform("POST", "/api/v1/workers/kill", {"after_s": KILL_AFTER_S})
        if request.form.get("idle"):
            flash("A worker is being killed. No run is open on this page; others may be affected.")
    return redirect(_back(), 303)


@bp.post("/workers")
def resize() -> ResponseReturnValue:
    """Set the number of workers to a form's count, so a second press changes nothing."""
    count = request.form.get("count", 0, type=int)
    with _platform_expected():
        max_workers = int(ask_platform("GET", "/api/v1/workers", None)["max"])
        if not 1 <= count <= max_workers:
            abort(400, f"count must be a whole number from 1 to {max_workers}.")
        ask_platform("POST", "/api/v1/workers", {"count": count})
    return redirect(_back(), 303)


def workers() -> tuple[int, int]:
    """Return how many workers the app has, and may have; 0, 0 when no platform answers."""
    if not settings().is_local or not settings().devserver_url:
        return 0, 0
    try:
        answer = ask_platform("GET", "/api/v1/workers", None)
        return int(answer["count"]), int(answer["max"])
    except (requests.RequestException, KeyError, ValueError):
        return 0, 0


def strike_once_each(page: str) -> None:
    """Let each switch that is on strike one delivery of the run that begins, for certain.

    A run of few tasks might otherwise meet none. A platform that does not answer strikes nothing.
    """
    for switch in active_switches():
        with contextlib.suppress(requests.RequestException):
            _strike_once(switch, _path_of(page))


def _strike_once(switch: str, path: str) -> None:
    rule = SWITCHES[switch]
    once = {"id": f"{rule['id']}-once", "kind": rule["kind"], "path": path, "max_count": 1}
    ask_platform("POST", "/api/v1/faults", once)


def _path_of(page: str) -> str:
    return next((path for start, path in PATHS.items() if page.startswith(start)), "/tasks/")


@bp.post("/memcached/flush")
def flush_memcached() -> ResponseReturnValue:
    """Empty memcached."""
    host = settings().memcached
    if not settings().is_local or settings().devserver_url is None or host is None:
        abort(404)
    client = Client(host, timeout=TIMEOUT_S, connect_timeout=TIMEOUT_S, default_noreply=False)
    try:
        client.flush_all()
    except (OSError, MemcacheError):
        flash("memcached is down: there is nothing to flush.")
    else:
        _mark_flush()
    finally:
        client.close()
    return redirect(_back(), 303)


def _mark_flush() -> None:
    try:
        ask_platform("POST", "/api/v1/marks", {"kind": "flush"})
    except requests.RequestException:
        flash(
            "memcached is empty. The local platform did not answer, so the flush is not marked "
            "on the time axis."
        )


@contextlib.contextmanager
def _platform_expected() -> Iterator[None]:
    """Say on the next page that the platform did not answer, and what to do."""
    try:
        yield
    except requests.RequestException:
        flash(
            "The local platform did not answer, so the action may not have happened. Check that "
            "“make run” is still running, then press again."
        )


def rules_in_force() -> list[FaultRule]:
    """Return the rules that strike now; none when the platform does not answer."""
    if not settings().is_local or not settings().devserver_url:
        return []
    try:
        rules = ask_platform("GET", "/api/v1/faults", None)["faults"]
        return [rule for rule in map(FaultRule.of, rules) if rule.is_in_force]
    except (requests.RequestException, KeyError, TypeError, ValueError):
        return []


def active_switches() -> frozenset[str]:
    """Return which switches the pages have switched on."""
    ids = {rule.id for rule in rules_in_force()}
    return frozenset(name for name, rule in SWITCHES.items() if rule["id"] in ids)


def shown_faults(rules: Iterable[FaultRule], paths: Sequence[str]) -> Switches:
    """Return the faults in force, as a page of these routes of tasks shows them."""
    in_force = [rule for rule in rules if rule.is_in_force]
    own_switches = {
        name for name, rule in SWITCHES.items() if any(r.id == rule["id"] for r in in_force)
    }
    foreign = {
        name: [rule for rule in in_force if _is_foreign(rule, name, paths)] for name in SWITCHES
    }
    by_console = frozenset(
        name for name, rules in foreign.items() if rules and name not in own_switches
    )
    by_switch = {rule.id for rules in foreign.values() for rule in rules}
    unnamed = [rule for rule in in_force if rule.id not in by_switch and not _is_own(rule)]
    return Switches(by_console | own_switches, by_console, [in_words(rule) for rule in unnamed])


def _is_own(rule: FaultRule) -> bool:
    return any(rule.id in (switch["id"], f"{switch['id']}-once") for switch in SWITCHES.values())


def _is_foreign(rule: FaultRule, switch: str, paths: Sequence[str]) -> bool:
    """Return whether a rule of the console has the effect of a switch on some routes."""
    is_wide = not (rule.queue or rule.task)
    reaches = any(rule.path in path or path in rule.path for path in paths)
    is_same = rule.kind == SWITCHES[switch]["kind"]
    return is_same and is_wide and reaches and not _is_own(rule)


def in_words(rule: FaultRule) -> str:
    """Return a rule in a few words.

    >>> in_words(FaultRule("f", "error", 0.25, queue="fan-out"))
    'Errors, 25 % of deliveries, queue fan-out'
    """
    scope = {"queue": rule.queue, "path": rule.path, "task": rule.task}
    parts = [f"{name} {value}" for name, value in scope.items() if value]
    share = f"{rule.rate * 100:g} % of deliveries"
    return ", ".join([NAMES.get(rule.kind, rule.kind), share, *parts])


@bp.app_context_processor
def faults_for_pages() -> dict[str, Any]:
    """Let each page say which faults are in force; only a whole page asks the platform."""
    return {"faults_in_force": lambda: [in_words(rule) for rule in rules_in_force()]}


def ask_platform(method: str, path: str, body: dict[str, Any] | None) -> Any:
    """Call the local platform's control API; 404 where there is none."""
    base_url = settings().devserver_url
    if not settings().is_local or base_url is None:
        abort(404)
    response = requests.request(method, base_url + path, json=body, timeout=TIMEOUT_S)
    if response.status_code == 404 and method == "DELETE":
        return {}
    response.raise_for_status()
    return response.json()


def _back() -> str:
    """Return the page of ours that the form was on, or the front page."""
    path = request.form.get("back", "")
    return path if PAGES.fullmatch(path) else "/"
