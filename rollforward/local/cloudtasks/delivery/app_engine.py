"""The addresses of App Engine tasks on this machine: services by name, and the rules between them.

A task names a service, a version and an instance, or none of them. dispatch.yaml may send it to
another service, by its host and its path.

Sources: cloud.google.com/appengine/docs/standard/how-requests-are-routed,
cloud.google.com/appengine/docs/standard/reference/dispatch-yaml, and
cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2#appenginerouting
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rollforward.local.cloudtasks.protocol.validation import app_engine_host

DEFAULT_SERVICE = "default"
# App Engine's own paths.
_NOT_ROUTED = "/_ah/"


@dataclass(frozen=True)
class DispatchRule:
    """A rule of dispatch.yaml.

    Attributes:
        host: A host, or `*` and the end of one.
        path: A path, or the beginning of one and `*`.
    """

    host: str
    path: str
    service: str

    def matches(self, host: str, path: str) -> bool:
        """Return whether a request is one that the rule sends to its service.

        >>> rule = DispatchRule("*.appspot.com", "/work/*", "worker")
        >>> rule.matches("shop.appspot.com", "/work/1"), rule.matches("shop.appspot.com", "/work")
        (True, False)
        """
        return _matches_end(host, self.host) and _matches_start(path, self.path)


def _matches_end(text: str, pattern: str) -> bool:
    return text.endswith(pattern[1:]) if pattern.startswith("*") else text == pattern


def _matches_start(text: str, pattern: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


@dataclass(frozen=True)
class AppEngineApp:
    """The services of an app on this machine.

    Attributes:
        url: The base address of the default service.
        service_urls: Base addresses of further services, by `[[instance.]version.]service`.
        rules: Those of dispatch.yaml, in their order. They may change.
    """

    url: str
    service_urls: Mapping[str, str] = field(default_factory=dict)
    rules: list[DispatchRule] = field(default_factory=list)

    def address(self, routing: Any, project: str, relative_uri: str) -> str:
        """Return the full address of a relative one.

        A name that has no address of its own has its service's. A service without one has the
        default service's, as a host has on App Engine whose service does not exist.

        Args:
            routing: The AppEngineRouting of the task, or of its queue.
        """
        host, path = app_engine_host(routing, project), urlsplit(relative_uri).path
        names = _names(routing.service, routing.version, routing.instance)
        if not path.startswith(_NOT_ROUTED):
            matching = (rule.service for rule in self.rules if rule.matches(host, path))
            if service := next(matching, ""):
                names = _names(service, "", "")
        urls = (self.service_urls[name] for name in names if name in self.service_urls)
        return next(urls, self.url).rstrip("/") + relative_uri


def _names(service: str, version: str, instance: str) -> Iterator[str]:
    """Yield the names that an address may have, the most special one first.

    >>> [*_names("worker", "v2", "3")], [*_names("", "v2", "")]
    (['3.v2.worker', 'v2.worker', 'worker', 'default'], ['v2.default', 'default', 'default'])
    """
    service = service or DEFAULT_SERVICE
    if version:
        if instance:
            yield f"{instance}.{version}.{service}"
        yield f"{version}.{service}"
    yield service
    yield DEFAULT_SERVICE
