"""Ports on the loopback interface: free ones, and who holds a taken one."""

import errno
import os
import secrets
import socket

import psutil

from rollforward.local.errors import PortTakenError

LOOPBACK = "127.0.0.1"


# Below those that a system gives to whoever asks for any: from 32768 on Linux, 49152 on macOS.
_DRAWN_FROM = range(10_000, 32_000)
_DRAWS = 1_000


def free_port(host: str = LOOPBACK) -> int:
    """Return a port that was free a moment ago, and that no system gives to others.

    Another process may take the port before the caller does. A service that can listen on port 0
    should do that instead, and report its port.
    """
    for _ in range(_DRAWS):
        port = secrets.choice(_DRAWN_FROM)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise PortTakenError(f"All of {_DRAWS} ports that were drawn on {host} are taken.")


def hidden_address() -> tuple[str, int]:
    """Return a loopback address and a port that is free there, both drawn.

    Linux has 16 million loopback addresses. macOS has one: there only the port is drawn.
    """
    host = f"127.{'.'.join(str(1 + secrets.randbelow(254)) for _ in range(3))}"
    try:
        return host, free_port(host)
    except OSError:
        return LOOPBACK, free_port()


def pass_proxies_by(host: str) -> None:
    """Let this process and its children ask an address directly, past any proxy."""
    if any(name.lower() in ("http_proxy", "all_proxy", "grpc_proxy") for name in os.environ):
        hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        os.environ["no_proxy"] = f"{hosts},{host}" if hosts else host


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT is free for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return not accepts_connections(LOOPBACK, port)


def accepts_connections(host: str, port: int, timeout_s: float = 0.5) -> bool:
    """Return whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def holder(port: int) -> str | None:
    """Return "name (pid 123)" of the process listening on the port, if we may know."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, PermissionError):  # macOS asks for root
        return None
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        if connection.laddr.port == port and connection.pid:
            return _describe(connection.pid)
    return None


def choose(port: int, setting: str) -> int:
    """Return the wanted port, or a free one if 0 is wanted.

    Raises:
        PortTakenError: another program listens there; says which, and what to set.
    """
    if port == 0:
        return free_port()
    if is_free(port):
        return port
    owner = holder(port)
    by_whom = f" by {owner}" if owner else ""
    raise PortTakenError(
        f"Port {port} is taken{by_whom}. Stop that, or choose another: {setting}={port + 1}"
    )


def prefer(usual: int) -> int:
    """Return the usual port, or 0 if it is taken: its service takes a free one."""
    return usual if is_free(usual) else 0


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """Return host and port of "host", "host:port" or "[v6]:port".

    >>> split_address("127.0.0.1:8081", 80), split_address("[::1]:25", 80)
    (('127.0.0.1', 8081), ('::1', 25))
    >>> split_address("localhost", 80)
    ('localhost', 80)
    """
    host, separator, port = address.rpartition(":")
    if not separator or host.endswith(":") or "]" in port:
        return address.strip("[]"), default_port
    return host.strip("[]"), int(port)


def _describe(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except psutil.NoSuchProcess:
        return f"pid {pid}"
