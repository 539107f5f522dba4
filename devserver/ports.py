"""Ports on the loopback interface: free ones, and who holds a taken one."""

import os
import secrets
import socket

import psutil

from devserver.errors import PortTakenError

LOOPBACK = "127.0.0.1"


def free_port(host: str = LOOPBACK) -> int:
    """Return a port that nobody listened on a moment ago.

    Another process may take it before the caller does: whoever starts a
    service on it must be ready to try again with another.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


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
    """Let this process and its children ask an address directly, whatever proxy they have."""
    if any(name.lower() in ("http_proxy", "all_proxy", "grpc_proxy") for name in os.environ):
        kept = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        os.environ["no_proxy"] = f"{kept},{host}" if kept else host


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT is free for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return not answers(LOOPBACK, port)


def answers(host: str, port: int, timeout_s: float = 0.5) -> bool:
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


def choose(wanted: int, setting: str) -> int:
    """Return the wanted port, or a free one if 0 is wanted.

    Raises:
        PortTakenError: somebody listens there; says who, and what to set.
    """
    if wanted == 0:
        return free_port()
    if is_free(wanted):
        return wanted
    owner = holder(wanted)
    by_whom = f" by {owner}" if owner else ""
    raise PortTakenError(
        f"Port {wanted} is taken{by_whom}. Stop that, or choose another: {setting}={wanted + 1}"
    )


def prefer(usual: int) -> int:
    """Return the usual port, or a free one if somebody else has it."""
    return usual if is_free(usual) else free_port()


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
