"""Access over HTTP: a page of another site must not call, from a visitor's browser.

An emulator on the loopback interface answers to this machine's names only: that stops DNS
rebinding. One that listens beyond it cannot know by which name it is called, and answers to all.
A foreign Origin is refused always: browsers send it with each form and fetch of another site.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from rollforward.loopback import is_loopback


@dataclass(frozen=True)
class Callers:
    """The callers of one port.

    Attributes:
        are_local: False if it listens beyond the loopback interface.
    """

    are_local: bool = True

    def reason(self, headers: Mapping[str, str]) -> str:
        """Return why a request is refused, "" if it is not."""
        host = headers.get("Host", "")
        if not host:
            return "The Host header is missing."
        if self.are_local and not is_loopback_host(host):
            return "The Host header is not this machine's."
        origin = headers.get("Origin")
        if origin is not None and not is_own_origin(origin, host):
            return "The Origin is another site's."
        return ""


def is_own_origin(origin: str, host: str) -> bool:
    """Return whether an Origin header names the host that was asked.

    >>> is_own_origin("http://127.0.0.1:8000", "127.0.0.1:8000"), is_own_origin("http://[", "[")
    (True, False)
    """
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def is_loopback_host(host: str) -> bool:
    """Return whether a Host header names this machine.

    >>> is_loopback_host("127.0.0.1:8080"), is_loopback_host("evil.example:8080")
    (True, False)
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name.endswith(".localhost") or is_loopback(name)
