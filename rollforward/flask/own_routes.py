"""Routes of an app that would take the deliveries of declared tasks."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from flask import Flask
from werkzeug.exceptions import NotFound
from werkzeug.routing import Map, MapAdapter, RequestRedirect, Rule
from werkzeug.sansio.utils import host_is_trusted

from rollforward.tasks.cloud_tasks import AppEngineTarget, UrlTarget

TASKS = "/tasks/"
# A task goes to a version of a service, and its host begins with their names.
APP_ENGINE_HOSTS = ".appspot.com"


def check_routes(
    app: Flask, paths: Iterable[str], target: AppEngineTarget | UrlTarget | None = None
) -> None:
    """Refuse an app in which a task of these paths would not reach the library's endpoint.

    The answer of another route would end the task, and the work would be lost in silence.

    Args:
        target: The address of tasks.

    Raises:
        TypeError: a route of the app takes a task, or requests need a host that tasks lack.
    """
    name = f"{app.name:.50}"
    if app.url_map.host_matching:
        raise TypeError(
            f"{name} has host_matching, by which no request reaches a route without a host, as "
            "those of the library are: serve them by an app without it"
        )
    _check_hosts(app, target)
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


def _check_hosts(app: Flask, target: AppEngineTarget | UrlTarget | None) -> None:
    """Refuse an app that answers no request to the host of tasks.

    Raises:
        TypeError: its configuration leaves that host out.
    """
    host = urlsplit(target.base_url).netloc if isinstance(target, UrlTarget) else APP_ENGINE_HOSTS
    server, trusted = app.config["SERVER_NAME"], app.config.get("TRUSTED_HOSTS")
    if app.subdomain_matching and server and not _is_among(host, [server]):
        raise TypeError(
            f"{app.name:.50} has subdomain_matching, by which nothing reaches its routes but "
            f"requests to the SERVER_NAME {server}, and tasks and sweeps go to {host}: make it the "
            "host of TASKS_URL, or serve them by an app without it"
        )
    if trusted is not None and not _is_among(host, trusted) and not host_is_trusted(host, trusted):
        raise TypeError(
            f"{app.name:.50} has TRUSTED_HOSTS without {host}, where tasks and sweeps go: add it"
        )


def _is_among(host: str, names: Iterable[str]) -> bool:
    if host == APP_ENGINE_HOSTS:
        return any(name.endswith(host) for name in names)
    return host in names


def _taker(urls: MapAdapter, path: str, endpoint: Rule) -> str:
    """Return the route that a delivery reaches; "": the endpoint of tasks."""
    try:
        rule, _ = urls.match(path, "POST", return_rule=True)
    except RequestRedirect as redirect:  # To the path with a slash.
        return urlsplit(redirect.new_url).path
    except NotFound:  # A converter of the route refuses it.
        return path
    return "" if rule is endpoint else rule.rule
