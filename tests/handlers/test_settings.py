"""Settings: whole and strong, or the process does not start. S8 and S22."""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys

import pytest

from handlers.settings import DemoSettings
from rollforward.flask.settings import (
    APP_ENGINE,
    CLOUD_RUN,
    GOOGLE_CERTS_URL,
    GOOGLE_ISSUERS,
    LOCAL,
    LOCAL_ONLY,
    BadSettingsError,
)
from rollforward.tasks.cloud_tasks import AppEngineTarget, UrlTarget

pytestmark = pytest.mark.fast

# The same in every process, for test ids hold parts of it; and it stands in no file.
KEY = hashlib.sha384(b"the key of these tests").hexdigest()
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
IN_A_JOB = {
    "CLOUD_RUN_JOB": "backfill",
    **{name: value for name, value in ON_CLOUD_RUN.items() if name != "K_SERVICE"},
}


@pytest.mark.parametrize("platform", WHOLE)
def test_a_whole_configuration_is_taken(platform: str) -> None:
    """The configurations that the refusals below take something from are good ones."""
    settings = DemoSettings.from_environment(WHOLE[platform])

    assert settings.platform == platform
    assert settings.is_local == (platform == LOCAL)
    assert settings.secret_keys == (KEY,)


def test_a_job_of_cloud_run_has_the_settings_of_its_service() -> None:
    """A script against a deployed app; no service of Cloud Run has the job's variable."""
    job, service = map(DemoSettings.from_environment, (IN_A_JOB, ON_CLOUD_RUN))

    assert (job.platform, job.service) == (CLOUD_RUN, "backfill")
    assert (job.target, job.project) == (service.target, service.project)
    with pytest.raises(BadSettingsError, match="TASKS_URL"):
        DemoSettings.from_environment({**IN_A_JOB, "TASKS_URL": ""})


def test_an_app_without_services_says_where_it_has_them() -> None:
    """Also in a test, whose client comes from the app's own factory."""
    with pytest.raises(BadSettingsError, match=r"not set: .*run.*, or in a test .* `rollforward`"):
        DemoSettings.from_environment({**WHOLE[LOCAL], "TASKS_URL": ""})


def test_app_engine_delivers_to_itself_unless_told_otherwise() -> None:
    """On App Engine tasks come through its front end; with a URL they carry tokens."""
    own = DemoSettings.from_environment(ON_APP_ENGINE)
    url = DemoSettings.from_environment(
        {**ON_APP_ENGINE, "TASKS_URL": "https://x.example", "TASKS_SERVICE_ACCOUNT": "a@b"}
    )

    assert own.target == AppEngineTarget("worker")
    assert url.target == UrlTarget("https://x.example", "a@b", "https://x.example")


def test_a_deployed_app_trusts_google_alone() -> None:
    """S8: certificates and issuers of a deployed app are Google's; no setting changes them."""
    settings = DemoSettings.from_environment(ON_CLOUD_RUN)

    assert (settings.certs_url, settings.issuers) == (GOOGLE_CERTS_URL, GOOGLE_ISSUERS)
    assert settings.datastore_emulator is settings.cloud_tasks_emulator is None


@pytest.mark.parametrize("name", LOCAL_ONLY)
@pytest.mark.parametrize("platform", [APP_ENGINE, CLOUD_RUN])
def test_what_belongs_on_a_laptop_stops_a_deployed_app(platform: str, name: str) -> None:
    """S8: a variable of the local platform in a deployed app: it refuses to start."""
    with pytest.raises(BadSettingsError, match=name):
        DemoSettings.from_environment({**WHOLE[platform], name: "127.0.0.1:9"})


@pytest.mark.parametrize("project", [None, "", "demo-local", "demo-"])
@pytest.mark.parametrize("platform", [APP_ENGINE, CLOUD_RUN])
def test_a_deployed_app_needs_its_project(platform: str, project: str | None) -> None:
    """A deployed app without a real project's name would write to an unknown place."""
    env = {**WHOLE[platform], "GOOGLE_CLOUD_PROJECT": project}

    with pytest.raises(BadSettingsError, match="GOOGLE_CLOUD_PROJECT"):
        DemoSettings.from_environment({k: v for k, v in env.items() if v is not None})


@pytest.mark.parametrize("project", ["real", "Demo-local", "my-demo-project"])
def test_a_laptop_touches_no_real_project(project: str) -> None:
    """On a laptop the project's name must say that it is none."""
    with pytest.raises(BadSettingsError, match="demo-"):
        DemoSettings.from_environment({**LAPTOP, "GOOGLE_CLOUD_PROJECT": project})


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
    """S8: one emulator and one real service would write to an unintended place."""
    env = {**WHOLE[platform], name: ""}
    if not empty:
        del env[name]

    with pytest.raises(BadSettingsError, match=name):
        DemoSettings.from_environment(env)


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
        "abcdefghijklmnopqrstuvwxyz" * 2,
        "3141592653" * 4,
        KEY[:20] * 3,
        "0123456789abcdef-only-an-example-0123456789abcdef",
        "tests-only-" + KEY,
        "your-secret-key-goes-here-and-is-long-enough",
        KEY + "-example",
        "qwertyuiop" + KEY,
        "mypetiscalledrexandeatsallthebeansinthehouse",
        "Correct Horse 4 Battery 9 Staple and some more words",
        " ,  , ",
        f"{KEY},short",
    ],
)
def test_a_weak_secret_is_refused(key: str) -> None:
    """S22: short, well known, or hardly random: sessions and forms could be forged."""
    with pytest.raises(BadSettingsError, match="SECRET_KEY"):
        DemoSettings.from_environment({**ON_CLOUD_RUN, "SECRET_KEY": key})


def test_no_key_that_is_drawn_is_refused() -> None:
    """S22: what the docs say draws a key, and what `make run` draws, is taken."""
    for draw in (secrets.token_hex, secrets.token_urlsafe):
        key = draw(32)

        assert DemoSettings.from_environment({**ON_CLOUD_RUN, "SECRET_KEY": key}).secret_keys == (
            key,
        )


def test_a_secret_can_be_replaced_step_by_step() -> None:
    """S22: the first key signs, the others are still read."""
    older = secrets.token_hex(32)

    settings = DemoSettings.from_environment({**LAPTOP, "SECRET_KEY": f"{KEY}, {older}"})

    assert settings.secret_keys == (KEY, older)


@pytest.mark.parametrize("url", ["http://rollforward.example", "rollforward.example", "ftp://x"])
def test_tokens_do_not_travel_in_the_clear(url: str) -> None:
    """A deployed app gets its tasks over https alone."""
    with pytest.raises(BadSettingsError, match="https"):
        DemoSettings.from_environment({**ON_CLOUD_RUN, "TASKS_URL": url})


@pytest.mark.parametrize("account", ["@", "tasks@", "@real", "tasks", "a b@real", "a@b@real"])
def test_what_is_no_account_is_refused(account: str) -> None:
    """S8: its tokens would prove nothing, which the first task would notice."""
    with pytest.raises(BadSettingsError, match="TASKS_SERVICE_ACCOUNT must be"):
        DemoSettings.from_environment({**ON_CLOUD_RUN, "TASKS_SERVICE_ACCOUNT": account})


@pytest.mark.parametrize(
    "location", ["us-central", "europe-west", "US-central1", "us-central1-a", "us"]
)
@pytest.mark.parametrize("platform", WHOLE)
def test_a_location_is_the_full_name_of_a_region(platform: str, location: str) -> None:
    """App Engine's own name of its region: each task would fail with NOT_FOUND."""
    with pytest.raises(BadSettingsError, match=r"TASKS_LOCATION .*us-central1"):
        DemoSettings.from_environment({**WHOLE[platform], "TASKS_LOCATION": location})


@pytest.mark.parametrize("location", ["us-central1", "northamerica-northeast2", "me-west1"])
def test_a_region_of_any_name_is_taken(location: str) -> None:
    """Regions that come later have names of the same form."""
    settings = DemoSettings.from_environment({**ON_CLOUD_RUN, "TASKS_LOCATION": location})

    assert settings.location == location


@pytest.mark.parametrize(
    ("given", "database"),
    [("", None), ("(default)", None), ("shop", "shop"), ("default", "default")],
)
def test_the_default_database_has_no_name_in_calls(given: str, database: str | None) -> None:
    """gcloud names it "(default)"; Datastore refuses each call that does."""
    settings = DemoSettings.from_environment({**ON_CLOUD_RUN, "DATASTORE_DATABASE": given})

    assert settings.database == database
    assert settings.cache_scope == f"real/{database or ''}"


@pytest.mark.parametrize("level", ["verbose", "trace", "10"])
def test_a_level_that_logging_does_not_know_is_refused(level: str) -> None:
    """Each first request of a worker would fail instead, with an error that names no variable."""
    with pytest.raises(BadSettingsError, match="LOG_LEVEL must be DEBUG"):
        DemoSettings.from_environment({**ON_CLOUD_RUN, "LOG_LEVEL": level})


def test_an_empty_variable_is_none_at_all() -> None:
    """Files of variables have empty ones: a deployment has to work with them."""
    optional = ("TASKS_LOCATION", "LOG_LEVEL", "LOG_FORMAT", "MEMCACHE_HOSTS", "DATASTORE_DATABASE")
    empty = dict.fromkeys(optional, "")

    assert DemoSettings.from_environment(
        {**ON_CLOUD_RUN, **empty}
    ) == DemoSettings.from_environment(ON_CLOUD_RUN)


@pytest.mark.parametrize(
    "host", ["m:x", "m:", ":11211", "memcached://m:1", "::1", "a:1:2", "m:123456"]
)
def test_a_memcached_is_a_host_and_a_port(host: str) -> None:
    """What no client can open is noticed at the start, and by its variable."""
    with pytest.raises(BadSettingsError, match="MEMCACHE_HOSTS"):
        DemoSettings.from_environment({**ON_CLOUD_RUN, "MEMCACHE_HOSTS": host})


@pytest.mark.parametrize("host", ["m", "10.0.0.3", "m:1", "m.example:11211", "[::1]:11211"])
def test_a_memcached_has_a_port_of_its_own_or_the_usual_one(host: str) -> None:
    """Memorystore shows an address and a port in two fields."""
    assert DemoSettings.from_environment({**ON_CLOUD_RUN, "MEMCACHE_HOSTS": host}).memcached == host


@pytest.mark.parametrize(
    ("platform", "log_format", "streams"),
    [(LOCAL, "text", 8), (APP_ENGINE, "json", 0), (CLOUD_RUN, "json", 8)],
)
def test_each_platform_has_defaults_of_its_own(
    platform: str, log_format: str, streams: int
) -> None:
    """S34: Cloud Logging reads JSON, people read text; App Engine streams no response."""
    settings = DemoSettings.from_environment(WHOLE[platform])

    assert (settings.log_format, settings.live_streams) == (log_format, streams)


@pytest.mark.parametrize(
    ("threads", "given", "streams"),
    [("", "", 8), ("8", "", 2), ("3", "", 0), ("8", "4", 4), ("", "16", 16), ("64", "0", 0)],
)
def test_streams_keep_a_quarter_of_the_threads_or_as_many_as_is_said(
    threads: str, given: str, streams: int
) -> None:
    """S34: gunicorn says how many threads a worker has."""
    env = {**LAPTOP, "WORKER_THREADS": threads, "LIVE_STREAMS": given}

    assert DemoSettings.from_environment(env).live_streams == streams


@pytest.mark.parametrize(
    ("threads", "given"), [("", "17"), ("8", "5"), ("8", "-1"), ("1", "1"), ("x", ""), ("", "٣")]
)
def test_streams_keep_half_of_the_threads_at_most(threads: str, given: str) -> None:
    """S34: the other threads answer all other callers; without any the app answers no caller."""
    env = {**LAPTOP, "WORKER_THREADS": threads, "LIVE_STREAMS": given}

    with pytest.raises(BadSettingsError, match=r"(LIVE_STREAMS|WORKER_THREADS) must be .*, got"):
        DemoSettings.from_environment(env)


@pytest.mark.parametrize("size", ["0", "-1", "501", "many", "1.5", "9" * 20])
def test_a_page_size_is_a_number_within_bounds(size: str) -> None:
    """A page of no guests, or of more than a lease lasts for, is noticed at the start."""
    with pytest.raises(BadSettingsError, match="PAGE_SIZE"):
        DemoSettings.from_environment({**LAPTOP, "PAGE_SIZE": size})


@pytest.mark.parametrize("most", ["0", "-1", "many", "1000001", "9" * 5000])
def test_a_limit_of_requests_is_a_number_within_bounds(most: str) -> None:
    """A limit of zero requests, or one that is no number, fails at the start."""
    with pytest.raises(BadSettingsError, match="REQUESTS_PER_MINUTE"):
        DemoSettings.from_environment(
            {**LAPTOP, "MEMCACHE_HOSTS": "m:1", "REQUESTS_PER_MINUTE": most}
        )


def test_a_limit_of_requests_needs_somewhere_to_count() -> None:
    """A limit without effect fails at the start."""
    env = {**ON_CLOUD_RUN, "REQUESTS_PER_MINUTE": "600"}

    with pytest.raises(BadSettingsError, match="MEMCACHE_HOSTS"):
        DemoSettings.from_environment(env)
    counted = DemoSettings.from_environment({**env, "MEMCACHE_HOSTS": "m:1"})
    assert counted.requests_per_minute == 600


@pytest.mark.parametrize("host", [":25", "relay:", "relay:smtp", "relay:25x"])
def test_a_relay_is_a_host_and_a_port(host: str) -> None:
    """A mail relay that cannot be reached is noticed at the start, not at the first mail."""
    with pytest.raises(BadSettingsError, match="SMTP_HOST"):
        DemoSettings.from_environment({**LAPTOP, "SMTP_HOST": host})


@pytest.mark.parametrize("platform", [APP_ENGINE, CLOUD_RUN])
@pytest.mark.parametrize("switch", ["", "0"])
@pytest.mark.parametrize("name", ["SMTP_USER", "SMTP_PASSWORD"])
def test_a_password_does_not_travel_in_the_clear(platform: str, switch: str, name: str) -> None:
    """A deployed app logs in to its relay over TLS, or does not start."""
    env = {**WHOLE[platform], name: "x", "SMTP_STARTTLS": switch}

    with pytest.raises(BadSettingsError, match="SMTP_STARTTLS"):
        DemoSettings.from_environment(env)
    assert DemoSettings.from_environment({**env, "SMTP_STARTTLS": "1"}).smtp_starttls


@pytest.mark.parametrize(
    ("platform", "given", "is_allocated"),
    [
        (LOCAL, "", True),
        (LOCAL, "0", False),
        (APP_ENGINE, "", True),
        (APP_ENGINE, "0", False),
        (CLOUD_RUN, "", False),
        (CLOUD_RUN, "1", True),
        ("a job", "", True),
    ],
)
def test_cloud_run_takes_the_processor_between_requests_unless_told_otherwise(
    platform: str, given: str, is_allocated: bool
) -> None:
    """Its default is request-based billing, and no variable of its own says which it is."""
    env = {**(WHOLE.get(platform) or IN_A_JOB), "CPU_ALWAYS_ALLOCATED": given}

    assert DemoSettings.from_environment(env).cpu_always_allocated is is_allocated


@pytest.mark.parametrize("switch", ["true", "yes", "2", " 1"])
def test_a_processor_is_allocated_always_or_not(switch: str) -> None:
    """A value that looks like on and would be off fails at the start."""
    with pytest.raises(BadSettingsError, match="CPU_ALWAYS_ALLOCATED must be 1 or 0"):
        DemoSettings.from_environment({**ON_CLOUD_RUN, "CPU_ALWAYS_ALLOCATED": switch})


@pytest.mark.parametrize("switch", ["true", "yes", "on", "01", "1 ", "2", "-1", "false"])
@pytest.mark.parametrize("platform", WHOLE)
def test_a_switch_is_on_or_off(platform: str, switch: str) -> None:
    """A value that looks like on and would be off fails at the start."""
    with pytest.raises(BadSettingsError, match="SMTP_STARTTLS"):
        DemoSettings.from_environment({**WHOLE[platform], "SMTP_STARTTLS": switch})


def test_an_app_is_on_one_platform() -> None:
    """S3: on Cloud Run any caller can send the header that proves the caller on App Engine."""
    both = {**ON_APP_ENGINE, **ON_CLOUD_RUN}

    with pytest.raises(BadSettingsError, match="GAE_ENV and K_SERVICE"):
        DemoSettings.from_environment(both)


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
