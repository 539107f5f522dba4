"""Settings, from the environment alone, checked once at the start.

Half a configuration is refused: an app with one emulator and one real service would write
somewhere by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rollforward.tasks.cloud_tasks import AppEngineTarget, UrlTarget
from rollforward.telemetry import logs

LOCAL, APP_ENGINE, CLOUD_RUN = "local", "appengine", "cloudrun"
DEMO_PREFIX = "demo-"
EMULATORS = ("DATASTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST")
LOCAL_ONLY = (
    *(*EMULATORS, "TASKS_CERTS_URL", "TASKS_ISSUER"),
    *("DEVSERVER_URL", "REPORTS_FOLDER", "CLOUD_PROFILE"),
)
GOOGLE_CERTS_URL = "https://www.googleapis.com/oauth2/v1/certs"
GOOGLE_ISSUERS = ("https://accounts.google.com", "accounts.google.com")
MIN_SECRET = 32
# Threads of a worker by default (rollforward/gunicorn/config.py sets them), as in app.yaml.
THREADS = 32
# Words of examples. A random key has one by chance once in a hundred thousand.
WEAK_SECRETS = (
    *("changeme", "change-me", "example", "password", "secret", "tests", "your-", "your_"),
    *("0123456", "abcdefg", "qwert", "asdfg", "zxcvb"),
)
REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
DEFAULT_DATABASE = "(default)"
# Without a port it is memcached's own; an address of IPv6 is in brackets.
HOST = re.compile(r"([^:/\[\]]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?")
# An account's address; whether there is one, Google knows.
ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+")


class BadSettingsError(ValueError):
    """The environment does not describe a whole configuration; the text names the variable."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of this process. `docs/settings.md` lists the variables."""

    platform: str
    project: str
    secret_keys: tuple[str, ...]
    target: AppEngineTarget | UrlTarget
    location: str = "us-central1"
    database: str | None = None
    datastore_emulator: str | None = None
    cloud_tasks_emulator: str | None = None
    memcached: str | None = None
    certs_url: str = GOOGLE_CERTS_URL
    issuers: tuple[str, ...] = GOOGLE_ISSUERS
    devserver_url: str | None = None
    log_level: str = "INFO"
    log_format: str = logs.TEXT
    service: str = ""  # As App Engine or Cloud Run names it; and the version of it.
    version: str = ""
    processes_folder: str | None = None
    reports_folder: str = ""  # Where a local app writes what the console shows of it.
    cloud_profile: str = ""  # The file whose latencies a local app takes on.
    metrics_accounts: tuple[str, ...] = ()  # Who may read /metrics and control runs by a token.
    metrics_audience: str = ""  # Of their tokens.
    # Whether threads run on between requests; on Cloud Run its billing decides.
    cpu_always_allocated: bool = True
    live_streams: int = 0  # How many streams of live updates a process holds open.

    @property
    def is_local(self) -> bool:
        """Whether the app runs on a laptop."""
        return self.platform == LOCAL

    @property
    def cache_scope(self) -> str:
        """The name of this app's data: two apps may share a memcached, and nothing in it."""
        return f"{self.project}/{self.database or ''}"

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        """Read the settings.

        Raises:
            BadSettingsError: something is missing, too weak, or does not fit the rest.
        """
        return cls(**cls.read(env))

    @classmethod
    def read(cls, env: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields; an app's own settings read more than these."""
        platform = _platform(env)
        project = env.get("GOOGLE_CLOUD_PROJECT") or "demo-local"
        if platform == LOCAL:
            _check_local(env, project)
        else:
            _check_cloud(env, project)
        return {
            "platform": platform,
            "project": project,
            "secret_keys": _secrets(env.get("SECRET_KEY", "")),
            "target": _target(env, platform),
            "location": _location(env),
            "database": _database(env),
            "datastore_emulator": env.get("DATASTORE_EMULATOR_HOST") or None,
            "cloud_tasks_emulator": env.get("CLOUD_TASKS_EMULATOR_HOST") or None,
            "memcached": _one_host(env.get("MEMCACHE_HOSTS", "")),
            "certs_url": env.get("TASKS_CERTS_URL") or GOOGLE_CERTS_URL,
            "issuers": (env["TASKS_ISSUER"],) if env.get("TASKS_ISSUER") else GOOGLE_ISSUERS,
            "devserver_url": env.get("DEVSERVER_URL") or None,
            "log_level": _log_level(env),
            "log_format": _log_format(env, platform),
            "service": env.get("GAE_SERVICE") or _on_cloud_run(env),
            "version": env.get("GAE_VERSION") or env.get("K_REVISION") or "",
            "processes_folder": env.get("WORKER_FILES") or None,
            "reports_folder": env.get("REPORTS_FOLDER", ""),
            "cloud_profile": env.get("CLOUD_PROFILE", ""),
            **_metrics_readers(env),
            "cpu_always_allocated": switch_of(
                env, "CPU_ALWAYS_ALLOCATED", default=not env.get("K_SERVICE")
            ),
            "live_streams": _live_streams(env, platform),
        }


def _platform(env: Mapping[str, str]) -> str:
    if env.get("GAE_ENV") == "standard":
        if _on_cloud_run(env):
            raise BadSettingsError(
                "GAE_ENV and K_SERVICE are both set: this is App Engine, whose headers prove who "
                "calls, or Cloud Run, where anybody may send them"
            )
        return APP_ENGINE
    return CLOUD_RUN if _on_cloud_run(env) else LOCAL


def _on_cloud_run(env: Mapping[str, str]) -> str:
    """Return the name of the service or job of Cloud Run that this process is of; "": of none."""
    return env.get("K_SERVICE") or env.get("CLOUD_RUN_JOB") or ""


def _check_local(env: Mapping[str, str], project: str) -> None:
    if not project.startswith(DEMO_PREFIX):
        raise BadSettingsError(
            f"GOOGLE_CLOUD_PROJECT is {project!r}: on a laptop it must begin with "
            f"{DEMO_PREFIX!r}, so that no real project is touched"
        )
    absent = [name for name in (*EMULATORS, "TASKS_URL") if not env.get(name)]
    if absent:
        raise BadSettingsError(
            f"{', '.join(absent)} not set: start the app with `rollforward run`, or in a test take "
            "it from pytest's fixture `rollforward`"
        )


def _check_cloud(env: Mapping[str, str], project: str) -> None:
    local = [name for name in LOCAL_ONLY if env.get(name)]
    if local:
        raise BadSettingsError(f"{', '.join(local)} belong on a laptop, not in a deployed app")
    if project.startswith(DEMO_PREFIX):
        raise BadSettingsError("GOOGLE_CLOUD_PROJECT is not set to the project deployed to")


def _secrets(text: str) -> tuple[str, ...]:
    keys = tuple(key.strip() for key in text.split(",") if key.strip())
    if not keys:
        raise BadSettingsError(
            "SECRET_KEY is not set: `python -c 'import secrets; print(secrets.token_hex(32))'`"
        )
    for key in keys:
        if not _is_strong(key):
            raise BadSettingsError(f"SECRET_KEY must be at least {MIN_SECRET} random characters")
    return keys


def _is_strong(key: str) -> bool:
    """Return whether a key may be random: not short, not monotonous, not made of words."""
    repeats_itself = key in (key + key)[1:-1]
    has_words = any(word in key.lower() for word in WEAK_SECRETS)
    # Of keys drawn as the docs say, one in 10**13 has letters of one case alone.
    is_a_phrase = len(key.split()) > 1 or (
        key in (key.lower(), key.upper()) and not any(map(str.isdigit, key))
    )
    is_monotonous = len(set(key)) < 8 or repeats_itself
    return len(key) >= MIN_SECRET and not (is_monotonous or has_words or is_a_phrase)


def _target(env: Mapping[str, str], platform: str) -> AppEngineTarget | UrlTarget:
    base_url = env.get("TASKS_URL", "").rstrip("/")
    if not base_url:
        if platform == APP_ENGINE:
            return AppEngineTarget(env.get("GAE_SERVICE"))
        raise BadSettingsError("TASKS_URL is not set: the URL where tasks reach this app")
    if not base_url.startswith("https://") and platform != LOCAL:
        raise BadSettingsError("TASKS_URL must begin with https://")
    account = env.get("TASKS_SERVICE_ACCOUNT", "")
    if not ACCOUNT.fullmatch(account):
        raise BadSettingsError(
            "TASKS_SERVICE_ACCOUNT must be the address of the account whose tokens tasks carry, "
            f"got {account[:80]!r}"
        )
    return UrlTarget(base_url, account, env.get("TASKS_AUDIENCE") or base_url)


def _metrics_readers(env: Mapping[str, str]) -> dict[str, Any]:
    texts = env.get("METRICS_ACCOUNTS", "").split(",")
    accounts = tuple(text.strip() for text in texts if text.strip())
    for account in accounts:
        if not ACCOUNT.fullmatch(account):
            raise BadSettingsError(
                f"METRICS_ACCOUNTS must be addresses of accounts, got {account[:80]!r}"
            )
    base_url = env.get("TASKS_URL", "").rstrip("/")
    audience = env.get("METRICS_AUDIENCE") or env.get("TASKS_AUDIENCE") or base_url
    if accounts and not audience:
        raise BadSettingsError(
            "METRICS_AUDIENCE is not set: the audience of the tokens of METRICS_ACCOUNTS, which is "
            "the URL of this app"
        )
    return {"metrics_accounts": accounts, "metrics_audience": audience}


def _location(env: Mapping[str, str]) -> str:
    location = env.get("TASKS_LOCATION") or "us-central1"
    if not REGION.fullmatch(location):
        raise BadSettingsError(
            "TASKS_LOCATION must be the full name of a region, as us-central1: App Engine's "
            f"us-central and europe-west end in 1 here; got {location[:40]!r}"
        )
    return location


def _database(env: Mapping[str, str]) -> str | None:
    """Return the name of the database; Datastore's API has none for the one gcloud names so."""
    name = env.get("DATASTORE_DATABASE") or DEFAULT_DATABASE
    return None if name == DEFAULT_DATABASE else name


def _log_level(env: Mapping[str, str]) -> str:
    level = (env.get("LOG_LEVEL") or "INFO").upper()
    if level not in logs.LEVELS:
        raise BadSettingsError(f"LOG_LEVEL must be {', '.join(logs.LEVELS)}, got {level[:20]!r}")
    return level


def _log_format(env: Mapping[str, str], platform: str) -> str:
    default = logs.TEXT if platform == LOCAL else logs.JSON
    log_format = env.get("LOG_FORMAT") or default
    if log_format not in logs.FORMATS:
        raise BadSettingsError(
            f"LOG_FORMAT must be {', '.join(logs.FORMATS)}, got {log_format[:20]!r}"
        )
    return log_format


def _live_streams(env: Mapping[str, str], platform: str) -> int:
    """Return how many streams a process holds open; each keeps a thread from other requests."""
    threads = _count(env, "WORKER_THREADS", THREADS, at_most=10_000)
    default = 0 if platform == APP_ENGINE else threads // 4
    streams = _count(env, "LIVE_STREAMS", default, at_most=10_000)
    if streams and platform == APP_ENGINE:
        raise BadSettingsError(
            "LIVE_STREAMS must be 0 on App Engine: it holds a response back until it is complete"
        )
    if streams > threads // 2:
        raise BadSettingsError(
            f"LIVE_STREAMS must be at most {threads // 2}, half the {threads} threads of a worker, "
            f"got {streams}: the others answer all other requests"
        )
    return streams


def switch_of(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether a variable of 1 or 0 is on; one that is empty has its default.

    Raises:
        BadSettingsError: it is neither.
    """
    text = env.get(name) or str(int(default))
    if text not in ("0", "1"):
        raise BadSettingsError(f"{name} must be 1 or 0, got {text[:20]!r}")
    return text == "1"


def _count(env: Mapping[str, str], name: str, default: int, *, at_most: int) -> int:
    text = env.get(name) or str(default)
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or int(text) > at_most:
        raise BadSettingsError(f"{name} must be a number from 0 to {at_most}, got {text[:20]!r}")
    return int(text)


def _one_host(text: str) -> str | None:
    if "," in text or " " in text.strip():
        raise BadSettingsError(
            "MEMCACHE_HOSTS takes one host:port: with several, keys move when one is away"
        )
    host = text.strip()
    if host and not HOST.fullmatch(host):
        raise BadSettingsError(f"MEMCACHE_HOSTS must be host:port, got {host[:80]!r}")
    return host or None
