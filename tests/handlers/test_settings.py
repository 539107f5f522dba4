"""Settings: whole and strong, or the process does not start. S8 and S22."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import pytest

from handlers.settings import (
    APP_ENGINE,
    CLOUD_RUN,
    GOOGLE_CERTS_URL,
    GOOGLE_ISSUERS,
    LOCAL,
    LOCAL_ONLY,
    BadSettingsError,
    Settings,
)
from pipelines.tasks import AppEngineTarget, UrlTarget

# Random once, and the same in every process: test ids hold parts of it.
KEY = "3f9c1e7a5b2d8046c1f7e93ab4d2065897ce31f0a86b4d25" * 2
LAPTOP = {
    "GOOGLE_CLOUD_PROJECT": "demo-local",
    "SECRET_KEY": KEY,
    "DATASTORE_EMULATOR_HOST": "127.0.0.1:1",
    "CLOUD_TASKS_EMULATOR_HOST": "127.0.0.1:2",
    "TASKS_URL": "http://127.0.0.1:8080",
    "TASKS_SERVICE_ACCOUNT": "tasks@demo-local.iam.gserviceaccount.com",
    "SMTP_HOST": "127.0.0.1:1025",
}
ON_APP_ENGINE = {
    "GAE_ENV": "standard",
    "GAE_SERVICE": "worker",
    "GOOGLE_CLOUD_PROJECT": "real",
    "SECRET_KEY": KEY,
    "SMTP_HOST": "relay.example",
}
ON_CLOUD_RUN = {
    "K_SERVICE": "rollforward",
    "GOOGLE_CLOUD_PROJECT": "real",
    "SECRET_KEY": KEY,
    "SMTP_HOST": "relay.example:2525",
    "TASKS_URL": "https://rollforward.example/",
    "TASKS_SERVICE_ACCOUNT": "tasks@real.iam.gserviceaccount.com",
}
WHOLE = {LOCAL: LAPTOP, APP_ENGINE: ON_APP_ENGINE, CLOUD_RUN: ON_CLOUD_RUN}


@pytest.mark.parametrize("platform", WHOLE)
def test_a_whole_configuration_is_taken(platform: str) -> None:
    """The configurations that the refusals below take something from are good ones."""
    settings = Settings.from_environment(WHOLE[platform])

    assert settings.platform == platform
    assert settings.is_local == (platform == LOCAL)
    assert settings.secret_keys == (KEY,)


def test_app_engine_delivers_to_itself_unless_told_otherwise() -> None:
    """On App Engine tasks come through its front end; with a URL they carry tokens."""
    own = Settings.from_environment(ON_APP_ENGINE)
    url = Settings.from_environment(
        {**ON_APP_ENGINE, "TASKS_URL": "https://x.example", "TASKS_SERVICE_ACCOUNT": "a@b"}
    )

    assert own.target == AppEngineTarget("worker")
    assert url.target == UrlTarget("https://x.example", "a@b", "https://x.example")


def test_a_deployed_app_trusts_google_alone() -> None:
    """S8: certificates and issuers of a deployed app are Google's; nobody can set others."""
    settings = Settings.from_environment(ON_CLOUD_RUN)

    assert (settings.certs_url, settings.issuers) == (GOOGLE_CERTS_URL, GOOGLE_ISSUERS)
    assert settings.datastore_emulator is settings.cloud_tasks_emulator is None


@pytest.mark.parametrize("name", LOCAL_ONLY)
@pytest.mark.parametrize("platform", [APP_ENGINE, CLOUD_RUN])
def test_what_belongs_on_a_laptop_stops_a_deployed_app(platform: str, name: str) -> None:
    """S8: a variable of the local platform in a deployed app: it refuses to start."""
    with pytest.raises(BadSettingsError, match=name):
        Settings.from_environment({**WHOLE[platform], name: "127.0.0.1:9"})


@pytest.mark.parametrize("project", [None, "", "demo-local", "demo-"])
@pytest.mark.parametrize("platform", [APP_ENGINE, CLOUD_RUN])
def test_a_deployed_app_needs_its_project(platform: str, project: str | None) -> None:
    """A deployed app without a real project's name would write nobody knows where."""
    env = {**WHOLE[platform], "GOOGLE_CLOUD_PROJECT": project}

    with pytest.raises(BadSettingsError, match="GOOGLE_CLOUD_PROJECT"):
        Settings.from_environment({k: v for k, v in env.items() if v is not None})


@pytest.mark.parametrize("project", ["real", "Demo-local", "my-demo-project"])
def test_a_laptop_touches_no_real_project(project: str) -> None:
    """On a laptop the project's name must say that it is none."""
    with pytest.raises(BadSettingsError, match="demo-"):
        Settings.from_environment({**LAPTOP, "GOOGLE_CLOUD_PROJECT": project})


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        (LOCAL, "DATASTORE_EMULATOR_HOST"),
        (LOCAL, "CLOUD_TASKS_EMULATOR_HOST"),
        (LOCAL, "TASKS_URL"),
        (LOCAL, "TASKS_SERVICE_ACCOUNT"),
        (LOCAL, "SMTP_HOST"),
        (LOCAL, "SECRET_KEY"),
        (APP_ENGINE, "SMTP_HOST"),
        (APP_ENGINE, "SECRET_KEY"),
        (CLOUD_RUN, "TASKS_URL"),
        (CLOUD_RUN, "TASKS_SERVICE_ACCOUNT"),
        (CLOUD_RUN, "SMTP_HOST"),
        (CLOUD_RUN, "SECRET_KEY"),
    ],
)
@pytest.mark.parametrize("empty", [True, False])
def test_half_a_configuration_is_refused_by_name(platform: str, name: str, empty: bool) -> None:
    """S8: one emulator and one real service would write where nobody meant."""
    env = {**WHOLE[platform], name: ""}
    if not empty:
        del env[name]

    with pytest.raises(BadSettingsError, match=name):
        Settings.from_environment(env)


@pytest.mark.parametrize(
    "key",
    [
        "dev",
        "changeme",
        "secret" + KEY,
        "Password" + KEY,
        KEY[:31],
        "a" * 64,
        "abcabcab" * 8,
        " ,  , ",
        f"{KEY},short",
    ],
)
def test_a_weak_secret_is_refused(key: str) -> None:
    """S22: short, well known, or hardly random: sessions and forms could be forged."""
    with pytest.raises(BadSettingsError, match="SECRET_KEY"):
        Settings.from_environment({**ON_CLOUD_RUN, "SECRET_KEY": key})


def test_a_secret_can_be_replaced_step_by_step() -> None:
    """S22: the first key signs, the others are still read."""
    older = secrets.token_hex(32)

    settings = Settings.from_environment({**LAPTOP, "SECRET_KEY": f"{KEY}, {older}"})

    assert settings.secret_keys == (KEY, older)


@pytest.mark.parametrize("url", ["http://rollforward.example", "rollforward.example", "ftp://x"])
def test_tokens_do_not_travel_in_the_clear(url: str) -> None:
    """A deployed app gets its tasks over https alone."""
    with pytest.raises(BadSettingsError, match="https"):
        Settings.from_environment({**ON_CLOUD_RUN, "TASKS_URL": url})


@pytest.mark.parametrize("size", ["0", "-1", "501", "many", "1.5", "9" * 20])
def test_a_page_size_is_a_number_within_bounds(size: str) -> None:
    """A page of no guests, or of more than a lease lasts for, is noticed at the start."""
    with pytest.raises(BadSettingsError, match="PAGE_SIZE"):
        Settings.from_environment({**LAPTOP, "PAGE_SIZE": size})


@pytest.mark.parametrize("host", [":25", "relay:", "relay:smtp", "relay:25x"])
def test_a_relay_is_a_host_and_a_port(host: str) -> None:
    """A mail relay that cannot be reached is noticed at the start, not at the first mail."""
    with pytest.raises(BadSettingsError, match="SMTP_HOST"):
        Settings.from_environment({**LAPTOP, "SMTP_HOST": host})


def test_a_process_with_half_a_configuration_does_not_start() -> None:
    """S8, S22: what gunicorn calls fails, and says which variable to set."""
    path = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env = {**path, **ON_CLOUD_RUN, "TASKS_CERTS_URL": "http://127.0.0.1/certs"}

    ended = subprocess.run(
        [sys.executable, "-c", "import main; main.serve()"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode != 0
    assert "TASKS_CERTS_URL belong on a laptop" in ended.stderr
    assert KEY not in ended.stderr
