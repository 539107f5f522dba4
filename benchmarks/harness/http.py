"""Requests to the app of a testbed."""

from __future__ import annotations

import http.client


def ask(port: int, path: str, timeout_s: float) -> None:
    """Get a path of the app.

    Raises:
        RuntimeError: the status of the answer is not 204.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    connection.request("GET", path)
    response = connection.getresponse()
    connection.close()
    if response.status != 204:
        raise RuntimeError(f"{path} answered {response.status}")
