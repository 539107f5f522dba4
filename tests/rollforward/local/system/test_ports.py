"""Ports: free ones, taken ones, and whom to tell."""

import os
import socket

import pytest

from rollforward.local.errors import PortTakenError
from rollforward.local.system import ports


@pytest.fixture
def taken_port():
    """A port that this process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_taken_port_is_named_with_its_holder_and_the_setting(taken_port):
    """The message says which port, who has it, and what to set instead."""
    with pytest.raises(PortTakenError) as caught:
        ports.choose(taken_port, "APP_PORT")

    text = str(caught.value)
    assert f"Port {taken_port} is taken" in text
    assert f"(pid {os.getpid()})" in text
    assert f"APP_PORT={taken_port + 1}" in text


def test_port_zero_gives_a_free_port():
    """Zero means: any that is free."""
    assert ports.is_free(ports.choose(0, "APP_PORT"))


def test_a_free_port_is_given_to_nobody_else_by_chance():
    """Who asks the system for any port gets one from further up, on Linux and macOS."""
    assert all(10_000 <= ports.free_port() < 32_768 for _ in range(100))


def test_a_preferred_port_gives_way_when_it_is_taken(taken_port):
    """A port that only programs use may be any: its service takes one when it starts."""
    assert ports.prefer(taken_port) == 0


def test_a_free_port_is_kept():
    """A port that nobody has is the one that was asked for."""
    free = ports.free_port()

    assert ports.choose(free, "APP_PORT") == free


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ({}, None),
        ({"no_proxy": "a.example"}, "a.example"),
        ({"HTTP_PROXY": "http://proxy"}, "127.1.2.3"),
        ({"http_proxy": "http://proxy", "NO_PROXY": "a.example"}, "a.example,127.1.2.3"),
    ],
)
def test_a_proxy_is_passed_by(monkeypatch, given, then):
    """Calls to an address that was drawn go nowhere else, and no other setting is lost."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "")
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    ports.pass_proxies_by("127.1.2.3")

    assert os.environ["no_proxy"] == (then or "")
