"""Certificates: fetched once, fetched again for a reason, and never because a stranger asks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from rollforward.flask import oidc
from rollforward.flask.oidc import BadTokenError, CertsUnavailableError, TokenVerifier
from rollforward.local.cloudtasks.delivery.signing_key import new_key
from rollforward.local.cloudtasks.delivery.tokens import TokenIssuer
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.handlers.conftest import Queue, app_with
from tests.infra.world import World

ISSUER = "https://accounts.google.com"


@dataclass
class Clock:
    """The verifier's own clock."""

    now_s: float = 1e6

    def monotonic(self) -> float:
        return self.now_s


class CertServer:
    """Serves certificates and counts how often it was asked."""

    def __init__(self, issuers: list[TokenIssuer]) -> None:
        self.issuers = issuers
        self.fetches = 0
        self.status = 200
        self.body: bytes | None = None
        self.on_fetch: Callable[[], object] = bool  # Called before the answer.
        self.url = ""


@pytest.fixture(scope="module")
def issuers() -> list[TokenIssuer]:
    return [TokenIssuer(new_key, ISSUER, time.time) for _ in range(2)]


@pytest.fixture
def certs(issuers: list[TokenIssuer]) -> Iterator[CertServer]:
    """A server of the first issuer's certificate, on a port of its own."""
    certs = CertServer(issuers[:1])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            certs.fetches += 1
            certs.on_fetch()
            published = {key: pem for i in certs.issuers for key, pem in i.certs().items()}
            body = json.dumps(published).encode() if certs.body is None else certs.body
            self.send_response(certs.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        certs.url = f"http://127.0.0.1:{http.server_port}/certs"
        yield certs
        http.shutdown()
        thread.join()


@pytest.fixture
def verifier(certs: CertServer) -> TokenVerifier:
    return TokenVerifier(certs.url, [ISSUER])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    stub = SimpleNamespace(monotonic=clock.monotonic, time=time.time)
    monkeypatch.setattr(oidc, "time", stub)
    return clock


def verify(verifier: TokenVerifier, issuer: TokenIssuer) -> None:
    verifier.verify(issuer.oidc_token(ACCOUNT, BASE_URL), audience=BASE_URL, account=ACCOUNT)


def refuse(verifier: TokenVerifier, issuer: TokenIssuer, error: type[Exception]) -> None:
    """Check that a token of an issuer is refused, however often it comes."""
    for _ in range(20):
        with pytest.raises(error):
            verify(verifier, issuer)


def is_held_up(certs: CertServer, call: Callable[[], object], *, by: Callable[[], object]) -> bool:
    """Return whether a call waits for another one, which waits for a fetch that hangs."""
    has_begun, may_end = threading.Event(), threading.Event()
    certs.on_fetch = lambda: (has_begun.set(), may_end.wait(60))
    first = threading.Thread(target=by)
    first.start()
    assert has_begun.wait(60)

    second = threading.Thread(target=call)
    second.start()
    second.join(20)
    is_waiting = second.is_alive()
    may_end.set()
    for thread in (second, first):
        thread.join()
    return is_waiting


def test_certificates_are_fetched_once_an_hour(
    certs: CertServer, verifier: TokenVerifier, issuers: list[TokenIssuer], clock: Clock
) -> None:
    """A thousand deliveries cost one fetch; an hour later there is one more."""
    for _ in range(20):
        verify(verifier, issuers[0])
    assert certs.fetches == 1

    clock.now_s += oidc.CERTS_TTL_S + 1
    verify(verifier, issuers[0])
    assert certs.fetches == 2


def test_an_unknown_key_cannot_cause_a_storm_of_fetches(
    certs: CertServer, verifier: TokenVerifier, issuers: list[TokenIssuer], clock: Clock
) -> None:
    """A stranger's keys cost at most one fetch in 30 seconds, and hold up nobody."""
    verify(verifier, issuers[0])

    refuse(verifier, issuers[1], BadTokenError)
    clock.now_s += oidc.MIN_BETWEEN_FETCHES_S - 1
    refuse(verifier, issuers[1], BadTokenError)
    assert certs.fetches == 1

    clock.now_s += 2
    refuse(verifier, issuers[1], BadTokenError)
    assert certs.fetches == 2


def test_a_new_key_of_the_signer_is_found(
    certs: CertServer, verifier: TokenVerifier, issuers: list[TokenIssuer], clock: Clock
) -> None:
    """When the signer changes its key, tokens are good again within 30 seconds."""
    verify(verifier, issuers[0])
    certs.issuers = issuers

    clock.now_s += oidc.MIN_BETWEEN_FETCHES_S + 1
    verify(verifier, issuers[1])
    verify(verifier, issuers[0])

    assert certs.fetches == 2


@pytest.mark.parametrize(
    ("status", "body"), [(500, None), (404, b"{}"), (200, b"not JSON"), (200, b"[]"), (200, b"{}")]
)
def test_without_certificates_nobody_can_tell(
    certs: CertServer,
    verifier: TokenVerifier,
    issuers: list[TokenIssuer],
    clock: Clock,
    status: int,
    body: bytes | None,
) -> None:
    """An answer that holds no certificates is no proof against a caller: it may come again."""
    certs.status, certs.body = status, body

    refuse(verifier, issuers[0], CertsUnavailableError)
    assert certs.fetches == 1

    certs.status, certs.body = 200, None
    clock.now_s += oidc.MIN_AFTER_FAILURE_S + 0.1
    verify(verifier, issuers[0])


def test_those_who_waited_for_a_fetch_that_hung_do_not_try_it_themselves(
    certs: CertServer, verifier: TokenVerifier, issuers: list[TokenIssuer], clock: Clock
) -> None:
    """One behind the other they would hold all threads; they are told to come again, at once."""

    def hang() -> None:
        clock.now_s += oidc.FETCH_TIMEOUT_S

    certs.status, certs.on_fetch = 500, hang
    refuse(verifier, issuers[0], CertsUnavailableError)
    assert certs.fetches == 1

    certs.status = 200
    clock.now_s += oidc.MIN_AFTER_FAILURE_S + 0.1
    verify(verifier, issuers[0])


def test_a_fetch_for_a_strangers_key_holds_up_no_known_one(
    certs: CertServer,
    verifier: TokenVerifier,
    issuers: list[TokenIssuer],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The certificates' server hangs while it is asked for a key that it may have by now."""
    monkeypatch.setattr(oidc, "FETCH_TIMEOUT_S", 60)
    verify(verifier, issuers[0])
    clock.now_s += oidc.MIN_BETWEEN_FETCHES_S + 1

    assert not is_held_up(
        certs,
        lambda: verify(verifier, issuers[0]),
        by=lambda: refuse(verifier, issuers[1], BadTokenError),
    )
    assert certs.fetches == 2


def test_a_failed_fetch_for_a_strangers_key_costs_the_known_keys_nothing(
    certs: CertServer, verifier: TokenVerifier, issuers: list[TokenIssuer], clock: Clock
) -> None:
    """While the certificates are out of reach, those fetched before go on counting."""
    verify(verifier, issuers[0])
    certs.status = 500
    clock.now_s += oidc.MIN_BETWEEN_FETCHES_S + 1

    with pytest.raises(CertsUnavailableError):
        verify(verifier, issuers[1])
    refuse(verifier, issuers[1], BadTokenError)
    verify(verifier, issuers[0])

    assert certs.fetches == 2


def test_an_outage_of_the_signers_server_stops_no_known_key_for_hours(
    certs: CertServer,
    verifier: TokenVerifier,
    issuers: list[TokenIssuer],
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Certificates that are due count until they can be fetched anew, six hours at most."""
    verify(verifier, issuers[0])
    certs.status = 500
    clock.now_s += oidc.CERTS_TTL_S + 1
    for _ in range(20):
        verify(verifier, issuers[0])
    assert certs.fetches == 2  # One in 30 seconds.
    assert "certificates of 60 minutes ago are used" in caplog.text

    clock.now_s += oidc.MAX_CERTS_AGE_S - oidc.CERTS_TTL_S - 2
    verify(verifier, issuers[0])
    clock.now_s += 2
    refuse(verifier, issuers[0], CertsUnavailableError)

    certs.status = 200
    clock.now_s += oidc.MIN_AFTER_FAILURE_S + 1
    verify(verifier, issuers[0])


def test_a_key_that_the_signer_withdraws_counts_for_an_hour(
    certs: CertServer, verifier: TokenVerifier, issuers: list[TokenIssuer], clock: Clock
) -> None:
    verify(verifier, issuers[0])
    certs.issuers = issuers[1:]
    clock.now_s += oidc.CERTS_TTL_S + 1

    refuse(verifier, issuers[0], BadTokenError)
    verify(verifier, issuers[1])
    assert certs.fetches == 2


def test_a_fetch_that_hangs_holds_up_one_caller_of_a_known_key(
    certs: CertServer,
    verifier: TokenVerifier,
    issuers: list[TokenIssuer],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oidc, "FETCH_TIMEOUT_S", 60)
    verify(verifier, issuers[0])
    clock.now_s += oidc.CERTS_TTL_S + 1

    assert not is_held_up(
        certs, lambda: verify(verifier, issuers[0]), by=lambda: verify(verifier, issuers[0])
    )
    assert certs.fetches == 2


@pytest.mark.parametrize("missing", ["audience", "account"])
def test_nothing_to_compare_with_refuses_all(
    verifier: TokenVerifier, issuers: list[TokenIssuer], missing: str
) -> None:
    """S5, S6: an empty audience or account of ours lets nobody in, instead of everybody."""
    wanted = {"audience": BASE_URL, "account": ACCOUNT, missing: ""}
    given = issuers[0].oidc_token(wanted["account"], wanted["audience"])

    with pytest.raises(BadTokenError):
        verifier.verify(given, **wanted)


@pytest.mark.parametrize(
    ("account", "audience"), [(ACCOUNT, "https://old.example"), ("other@x.example", BASE_URL)]
)
def test_a_token_for_another_app_is_refused_with_both_names(
    verifier: TokenVerifier, issuers: list[TokenIssuer], account: str, audience: str
) -> None:
    """S5, S6: by "Token has wrong audience https" nobody finds the setting that is wrong."""
    token = issuers[0].oidc_token(account, audience)

    with pytest.raises(BadTokenError) as refusal:
        verifier.verify(token, audience=BASE_URL, account=ACCOUNT)

    given, wanted = (audience, BASE_URL) if account == ACCOUNT else (account, ACCOUNT)
    assert f"{given!r}, not {wanted!r}" in str(refusal.value)


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_certificates_out_of_reach_ask_the_queue_to_come_again(world: World) -> None:
    """503 and not 403: a task must not be lost because a certificate was not there."""
    settings = replace(world.settings, certs_url="http://127.0.0.1:9/certs")
    app = app_with(world, settings=settings)

    answers = [Queue(world, app).deliver("/tasks/nothing") for _ in range(2)]

    assert [(answer.status_code, answer.data) for answer in answers] == [(503, b"")] * 2
