"""Faults that a page can ask the local platform for. Local only.

The platform listens on this machine alone; in a deployed app these routes are 404.
"""

from __future__ import annotations

import re
from typing import Any

import requests
from flask import Blueprint, abort, flash, redirect, request
from flask.typing import ResponseReturnValue
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError

from handlers.endpoints.context import settings

bp = Blueprint("faults", __name__, url_prefix="/break-it")

TIMEOUT_S = 3.0
PAGES = re.compile(r"/invitations/[0-9a-f]{32}|/grades|/counters|/sums/[a-z][a-z0-9-]{0,39}")
# What each switch asks for. Its `id` makes switching on twice the same as once.
SWITCHES: dict[str, dict[str, Any]] = {
    "errors": {"id": "page-errors", "kind": "error", "rate": 0.1},
    "lost": {"id": "page-lost", "kind": "lose_response", "rate": 0.1},
    "duplicates": {"id": "page-duplicates", "kind": "overlap", "rate": 0.2},
}


@bp.post("/<switch>/<any(on, off):to>")
def toggle(switch: str, to: str) -> ResponseReturnValue:
    """Switch a fault on or off, then go back to the page."""
    rule = SWITCHES.get(switch) or abort(404)
    if to == "on":
        ask_platform("POST", "/api/v1/faults", rule)
    else:
        ask_platform("DELETE", f"/api/v1/faults/{rule['id']}", {})
    return redirect(_back(), 303)


@bp.post("/worker/kill")
def kill_worker() -> ResponseReturnValue:
    """Kill one of this app's workers, maybe the one that handles this request."""
    ask_platform("POST", "/api/v1/workers/kill", {})
    return redirect(_back(), 303)


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
        flash("memcached does not answer, so it holds nothing.")
    finally:
        client.close()
    return redirect(_back(), 303)


def active_switches() -> set[str]:
    """Return which switches are on; none when the platform does not answer."""
    if not settings().devserver_url:
        return set()
    try:
        rules = ask_platform("GET", "/api/v1/faults", None)["faults"]
    except (requests.RequestException, KeyError, ValueError):
        return set()
    ids = {rule["id"] for rule in rules}
    return {name for name, rule in SWITCHES.items() if rule["id"] in ids}


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
