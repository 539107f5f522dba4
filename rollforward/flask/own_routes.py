"""Routes of an app that would take the deliveries of declared tasks."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from flask import Flask
from werkzeug.exceptions import NotFound
from werkzeug.routing import Map, MapAdapter, RequestRedirect, Rule

from rollforward.tasks.cloud_tasks import AppEngineTarget, UrlTarget

TASKS = "/tasks/"


def check_routes(
    app: Flask, paths: Iterable[str], target: AppEngineTarget | UrlTarget | None = None
) -> None:
    """Refuse an app in which a task of these paths would not reach the library's endpoint.

    The answer of another route would end the task, and the work would be lost in silence.

    Args:
        target: The address of tasks.

    Raises:
        TypeError: a route of the app takes a task, or routes need a host.
    """
    name = f"{app.name:.50}"
    if app.url_map.host_matching:
        raise TypeError(
            f"{name} has host_matching, by which no request reaches a route without a host, as "
            "those of the library are: serve them by an app without it"
        )
    server, host = app.config["SERVER_NAME"], _host_of(target)
    if app.subdomain_matching and server and host != server:
        raise TypeError(
            f"{name} has subdomain_matching, by which nothing reaches its routes but requests to "
            f"the SERVER_NAME {server}, and tasks and sweeps go to {host}: make it the host of "
            "TASKS_URL, or serve them by an app without it"
        )
    rules = [rule.empty() for rule in app.url_map.iter_rules() if rule.rule.startswith(TASKS)]
    if not rules:
        return
    endpoint = Rule(f"{TASKS}<path:rest>")
    urls = Map(
        [*rules, endpoint],
        converters=app.url_map.converters,
        merge_slashes=app.url_map.merge_slashes,
    ).bind("localhost")
    for path in paths:
        if taker := _taker(urls, path, endpoint):
            raise TypeError(
                f"{path} would not arrive: {name} has a route of its own there, {taker}. Give one "
                "of them another path, the task by @rf.task(path=...)"
            )


def _host_of(target: AppEngineTarget | UrlTarget | None) -> str:
    return urlsplit(target.base_url).netloc if isinstance(target, UrlTarget) else "App Engine's"


def _taker(urls: MapAdapter, path: str, endpoint: Rule) -> str:
    """Return the route that a delivery reaches; "": the endpoint of tasks."""
    try:
        rule, _ = urls.match(path, "POST", return_rule=True)
    except RequestRedirect as redirect:  # To the path with a slash.
        return urlsplit(redirect.new_url).path
    except NotFound:  # A converter of the route refuses it.
        return path
    return "" if rule is endpoint else rule.rule
