"""The tokens that requests carry, and the keys that verify them."""

import pytest
from google.auth import exceptions as auth_exceptions
from google.auth import jwt

from rollforward.local.cloudtasks.delivery.signing_key import new_key
from rollforward.local.cloudtasks.delivery.tokens import TokenIssuer
from tests.contracts.conftest import Received
from tests.contracts.received import ACCOUNT, get_json, received

pytestmark = pytest.mark.fast


def bearer(request: Received) -> str:
    """Return the token of a request."""
    scheme, _, token = request.headers["authorization"].partition(" ")
    assert scheme == "Bearer"
    return token


def test_oidc_token_verifies(live_cloud, handler):
    """An OIDC token is signed, and tells account and audience (docs/creating-http-target-tasks)."""
    oidc = {"service_account_email": ACCOUNT, "audience": "https://app.example"}
    request = received(live_cloud, handler, http_request=live_cloud.http(oidc_token=oidc))
    certs = get_json(f"{live_cloud.emulator.control_url}/oauth2/v1/certs")

    claims = jwt.decode(bearer(request), certs=certs, audience="https://app.example")

    assert claims["email"] == ACCOUNT
    assert claims["email_verified"] is True
    assert claims["iss"] == "https://accounts.google.com"
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["sub"].isdecimal()


def test_oidc_token_for_another_audience_is_refused(live_cloud, handler):
    """A token is good for its audience only (docs/creating-http-target-tasks#token)."""
    oidc = {"service_account_email": ACCOUNT, "audience": "https://app.example"}
    request = received(live_cloud, handler, http_request=live_cloud.http(oidc_token=oidc))
    certs = get_json(f"{live_cloud.emulator.control_url}/oauth2/v1/certs")

    with pytest.raises(auth_exceptions.InvalidValue):
        jwt.decode(bearer(request), certs=certs, audience="https://other.example")


def test_oidc_audience_defaults_to_the_address(live_cloud, handler):
    """Without an audience the target's URI is used (REF#oidctoken)."""
    oidc = {"service_account_email": ACCOUNT}
    request = received(live_cloud, handler, http_request=live_cloud.http(oidc_token=oidc))

    claims = jwt.decode(bearer(request), verify=False)

    assert claims["aud"] == f"{handler.url}/ok"


def test_oidc_token_is_of_the_real_time(live_cloud, handler):
    """A token must not come from the future, though the emulator's clock was advanced.

    Handlers check iat against their own clock (docs/creating-http-target-tasks#token).
    """
    live_cloud.advance(30 * 86400)
    oidc = {"service_account_email": ACCOUNT, "audience": "a"}
    request = received(live_cloud, handler, http_request=live_cloud.http(oidc_token=oidc))
    certs = get_json(f"{live_cloud.emulator.control_url}/oauth2/v1/certs")

    assert jwt.decode(bearer(request), certs=certs, audience="a")


def test_a_token_is_used_again_for_minutes_and_for_nobody_else():
    """A handler gets one that is good for 55 minutes at least, whatever the clock did."""
    now = [1_000_000.0]
    issuer = TokenIssuer(new_key, "us", lambda: now[0])

    def made_at(email: str = "a@x", audience: str = "a") -> int:
        claims = jwt.decode(issuer.oidc_token(email, audience), verify=False)
        assert (claims["email"], claims["aud"]) == (email, audience)
        return int(claims["iat"])

    assert made_at() == made_at("b@x") == made_at(audience="b") == 1_000_000
    now[0] += 299
    assert made_at() == 1_000_000
    now[0] += 1
    assert made_at() == 1_000_300
    now[0] -= 7200
    assert made_at() == now[0]


def test_keys_in_both_forms(live_cloud):
    """The keys are published as certificates and as a key set (openid.net, Discovery 1.0)."""
    base = live_cloud.emulator.control_url
    certs = get_json(f"{base}/oauth2/v1/certs")
    configuration = get_json(f"{base}/.well-known/openid-configuration")
    (key,) = get_json(configuration["jwks_uri"])["keys"]

    assert [key["kid"]] == list(certs)
    assert (key["kty"], key["alg"]) == ("RSA", "RS256")
    assert configuration["issuer"] == "https://accounts.google.com"


def test_oidc_token_of_the_queue(cloud):
    """A queue's token goes before the task's (REF#httptarget)."""
    cloud.configure(http_target={"oidc_token": {"service_account_email": "q@x", "audience": "q"}})
    oidc = {"service_account_email": "t@x", "audience": "t"}
    cloud.create(http_request=cloud.http(oidc_token=oidc))

    token = cloud.begin()[0].headers["Authorization"].partition(" ")[2]

    assert jwt.decode(token, verify=False)["email"] == "q@x"


def test_oauth_token(live_cloud, handler):
    """An OAuth token comes as a bearer token (REF#oauthtoken)."""
    oauth = {"service_account_email": ACCOUNT}
    request = received(live_cloud, handler, http_request=live_cloud.http(oauth_token=oauth))

    assert bearer(request)
