"""Ready hooks: who is let in by Identity-Aware Proxy's assertion, or by a token of Google."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flask import Flask
from google.auth import jwt
from google.auth.crypt import es256

from rollforward import flask as endpoints
from rollforward.console import Access, Console, Role, first_of, iap, oidc
from rollforward.local.system.ports import free_port
from rollforward.registry import Registry
from tests.infra.world import Services, World
from tests.rollforward.console.conftest import API, access

pytestmark = pytest.mark.parametrize("services", ["firestore"], indirect=True)

AUDIENCE = "/projects/1234/apps/shop"
URL = "https://shop.example.com"
PEOPLE: dict[str, Any] = {
    "readers": ["@example.com"],
    "operators": ["Ann@example.com", "robot@shop.iam.gserviceaccount.com"],
}


@pytest.fixture(scope="module")
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def keys_url(key: ec.EllipticCurvePrivateKey) -> Iterator[str]:
    """The address of the proxy's public keys."""
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"k1": public.decode()}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/keys"
        http.shutdown()
        thread.join()


def assertion(key: ec.EllipticCurvePrivateKey, **changes: Any) -> str:
    """Return what the proxy sends along."""
    now_s = int(time.time())
    claims = {
        "iss": "https://cloud.google.com/iap",
        "aud": AUDIENCE,
        "email": "ann@example.com",
        "iat": now_s - 30,
        "exp": now_s + 570,
        **changes,
    }
    token: bytes = jwt.encode(es256.ES256Signer(key, key_id="k1"), claims)  # type: ignore[no-untyped-call]
    return token.decode()


def app_with(services: Services, access: Access) -> tuple[World, Flask]:
    world = World(services)
    app = Flask("shop")
    console = Console(access=access)
    endpoints.mount(app, world.settings, world.clients, Registry(), console=console)
    return world, app


def ask(app: Flask, method: str = "GET", **headers: str) -> int:
    path = f"{API}/runs" if method == "GET" else f"{API}/dead-tasks/x:replay"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    client = app.test_client(use_cookies=False)
    json_body = None if method == "GET" else {}
    return client.open(path, method=method, headers=named, json=json_body).status_code


def test_the_proxy_s_assertion_gives_the_role_of_its_address(
    services: Services, key: ec.EllipticCurvePrivateKey, keys_url: str
) -> None:
    """An operator by name, a reader by domain, and others not at all."""
    _, app = app_with(services, iap(audience=AUDIENCE, certs_url=keys_url, **PEOPLE))

    def asked(method: str = "GET", **changes: Any) -> int:
        return ask(app, method, X_Goog_IAP_JWT_Assertion=assertion(key, **changes))

    assert (asked(), asked("POST")) == (200, 404)  # There is no such dead task.
    assert asked(email="accounts.google.com:ann@example.com") == 200
    bob = {"email": "bob@example.com"}
    assert (asked(**bob), asked("POST", **bob)) == (200, 403)
    assert asked(email="eve@evil.example") == 404
    assert asked(email="ann@example.com.evil.example") == 404
    assert asked(email="@example.com") == 404


def test_an_address_that_another_provider_vouches_for_is_of_no_domain(
    services: Services, key: ec.EllipticCurvePrivateKey, keys_url: str
) -> None:
    """With external identities of IAP, whoever signs up may claim an address of any domain."""
    known = "securetoken.google.com/shop:ann@example.com"
    people = {"readers": ["@example.com"], "operators": [known]}
    _, app = app_with(services, iap(audience=AUDIENCE, certs_url=keys_url, **people))

    def asked(email: str) -> int:
        return ask(app, X_Goog_IAP_JWT_Assertion=assertion(key, email=email))

    assert asked("securetoken.google.com/shop:eve@example.com") == 404
    assert asked("securetoken.google.com/shop/tenant:eve@example.com") == 404
    assert (asked(known), asked("accounts.google.com:eve@example.com")) == (200, 200)


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "/projects/1234/apps/other"},
        {"iss": "https://accounts.google.com"},
        {"exp": 1},
        {"iat": 10**11},
        {"email": None},
    ],
)
def test_an_assertion_that_proves_nothing_lets_nobody_in(
    services: Services, key: ec.EllipticCurvePrivateKey, keys_url: str, changes: dict[str, Any]
) -> None:
    """For another app, from another issuer, of another time, without an address."""
    _, app = app_with(services, iap(audience=AUDIENCE, certs_url=keys_url, **PEOPLE))

    assert ask(app, X_Goog_IAP_JWT_Assertion=assertion(key, **changes)) == 404


def test_the_plain_header_of_the_proxy_lets_nobody_in(services: Services, keys_url: str) -> None:
    """Anybody may send it; so may anybody sign with a key of his own."""
    _, app = app_with(services, iap(audience=AUDIENCE, certs_url=keys_url, **PEOPLE))
    forged = assertion(ec.generate_private_key(ec.SECP256R1()))

    assert ask(app, X_Goog_Authenticated_User_Email="accounts.google.com:ann@example.com") == 404
    assert ask(app, X_Goog_IAP_JWT_Assertion=forged) == 404
    assert ask(app, X_Goog_IAP_JWT_Assertion="x.y.z") == 404
    assert ask(app) == 404


def test_without_the_proxy_s_keys_a_caller_is_asked_to_come_again(
    services: Services, key: ec.EllipticCurvePrivateKey
) -> None:
    """Nobody can be let in, and nobody is told that there is nothing."""
    away = f"http://127.0.0.1:{free_port()}/keys"
    _, app = app_with(services, iap(audience=AUDIENCE, certs_url=away, **PEOPLE))

    assert ask(app, X_Goog_IAP_JWT_Assertion=assertion(key)) == 503


def test_a_token_of_google_gives_the_role_of_its_address(services: Services, keys_url: str) -> None:
    """For one of the audiences; the hooks may be asked one after the other."""
    hook = oidc(audience=[URL], **PEOPLE)
    world, app = app_with(
        services, first_of(iap(audience=AUDIENCE, certs_url=keys_url, **PEOPLE), hook)
    )

    def asked(email: str, audience: str = URL) -> int:
        token = world.engine.tokens.oidc_token(email, audience)
        return ask(app, Authorization=f"Bearer {token}")

    assert asked("robot@shop.iam.gserviceaccount.com") == 200
    assert asked("robot@shop.iam.gserviceaccount.com", "https://other.example.com") == 404
    assert asked("robot@other.iam.gserviceaccount.com") == 404
    assert ask(app, Authorization="Basic YTpi") == 404


@pytest.mark.parametrize(
    "declare",
    [
        lambda: iap(audience="", operators=["ann@example.com"]),
        lambda: oidc(audience=[], operators=["ann@example.com"]),
        lambda: oidc(audience=URL, operators="ann@example.com"),
    ],
)
def test_a_hook_that_would_let_in_the_wrong_ones_is_refused(
    services: Services, declare: Any
) -> None:
    """Without an audience a token for any app would do; a text is a list of letters."""
    with pytest.raises(ValueError, match=r"audience|as a list"):
        declare()


@pytest.mark.parametrize("answer", [False, 0, ""])
def test_a_hook_that_says_no_in_other_words_lets_nobody_in(services: Services, answer: Any) -> None:
    """`user.is_admin and Role.READ` is False for all others, who could read the whole API."""
    _, app = app_with(services, lambda request: answer)
    client = app.test_client(use_cookies=False)

    assert (ask(app), ask(app, "POST")) == (404, 403)  # As any address without a token.
    for page in ("", "static/console.css"):
        assert client.get(f"/rollforward/{page}").status_code == 404
    _, app = app_with(services, first_of(lambda request: answer, lambda request: Role.READ))
    assert (ask(app), ask(app, "POST")) == (200, 403)


def test_a_hook_whose_answer_is_no_role_lets_nobody_in_and_is_named(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    """True is no role: it could read the whole API, and its pages were an error 500."""
    _, app = app_with(services, lambda request: True)  # type: ignore[arg-type, return-value]

    assert ask(app) == ask(app, "POST") == 500
    assert "access must return a Role, a Caller or None, got True" in caplog.text


def test_requests_that_share_an_app_context_share_no_caller(services: Services) -> None:
    """`app.app_context().push()` at an import: under a server of one thread they have one `g`.

    Everybody who came after an operator was that operator.
    """
    _, app = app_with(services, access)

    with app.app_context():
        statuses = [ask(app, X_Role="operate"), ask(app), ask(app, X_Role="read"), ask(app)]

    assert statuses == [200, 404, 200, 404]
