"""Settings, from the environment alone, checked once at the start.

Half a configuration is refused: an app with one emulator and one real service would write
somewhere by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pipelines.tasks.cloud_tasks import AppEngineTarget, UrlTarget

LOCAL, APP_ENGINE, CLOUD_RUN = "local", "appengine", "cloudrun"
DEMO_PREFIX = "demo-"
EMULATORS = ("DATASTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST")
LOCAL_ONLY = (*EMULATORS, "TASKS_CERTS_URL", "TASKS_ISSUER", "DEVSERVER_URL")
GOOGLE_CERTS_URL = "https://www.googleapis.com/oauth2/v1/certs"
GOOGLE_ISSUERS = ("https://accounts.google.com", "accounts.google.com")
MIN_SECRET = 32
# A quarter of the threads that a worker is started with: each stream keeps one.
LIVE_STREAMS, MAX_LIVE_STREAMS = 8, 1000
# What examples are made of. By chance one stands in a random key once in a hundred thousand.
WEAK_SECRETS = (
    *("changeme", "change-me", "example", "password", "secret", "tests", "your-", "your_"),
    *("0123456", "abcdefg"),
)


class BadSettingsError(ValueError):
    """The environment does not describe a whole configuration; the text says what is off."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How this process runs. `docs/settings.md` lists the variables."""

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
    transactions_folder: str | None = None
    live_streams: int = 0  # How many streams of live updates a process holds open.

    @property
    def is_local(self) -> bool:
        return self.platform == LOCAL

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
            "location": env.get("TASKS_LOCATION", "us-central1"),
            "database": env.get("DATASTORE_DATABASE") or None,
            "datastore_emulator": env.get("DATASTORE_EMULATOR_HOST") or None,
            "cloud_tasks_emulator": env.get("CLOUD_TASKS_EMULATOR_HOST") or None,
            "memcached": _one_host(env.get("MEMCACHE_HOSTS", "")),
            "certs_url": env.get("TASKS_CERTS_URL") or GOOGLE_CERTS_URL,
            "issuers": (env["TASKS_ISSUER"],) if env.get("TASKS_ISSUER") else GOOGLE_ISSUERS,
            "devserver_url": env.get("DEVSERVER_URL") or None,
            "log_level": env.get("LOG_LEVEL", "INFO").upper(),
            "transactions_folder": env.get("WORKER_TRANSACTIONS") or None,
            "live_streams": _live_streams(env, platform),
        }


def _platform(env: Mapping[str, str]) -> str:
    if env.get("GAE_ENV") == "standard":
        if env.get("K_SERVICE"):
            raise BadSettingsError(
                "GAE_ENV and K_SERVICE are both set: this is App Engine, whose headers prove who "
                "calls, or Cloud Run, where anybody may send them"
            )
        return APP_ENGINE
    return CLOUD_RUN if env.get("K_SERVICE") else LOCAL


def _check_local(env: Mapping[str, str], project: str) -> None:
    if not project.startswith(DEMO_PREFIX):
        raise BadSettingsError(
            f"GOOGLE_CLOUD_PROJECT is {project!r}: on a laptop it must begin with "
            f"{DEMO_PREFIX!r}, so that no real project is touched"
        )
    missing = [name for name in (*EMULATORS, "TASKS_URL") if not env.get(name)]
    if missing:
        raise BadSettingsError(f"{', '.join(missing)} not set: start the app with `make run`")


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
    """Return whether a key may be random: not short, not monotonous, not from an example."""
    repeats_itself = key in (key + key)[1:-1]
    has_words = any(word in key.lower() for word in WEAK_SECRETS)
    return len(key) >= MIN_SECRET and len(set(key)) >= 8 and not repeats_itself and not has_words


def _target(env: Mapping[str, str], platform: str) -> AppEngineTarget | UrlTarget:
    base_url = env.get("TASKS_URL", "").rstrip("/")
    if not base_url:
        if platform == APP_ENGINE:
            return AppEngineTarget(env.get("GAE_SERVICE"))
        raise BadSettingsError("TASKS_URL is not set: the URL where tasks reach this app")
    if not base_url.startswith("https://") and platform != LOCAL:
        raise BadSettingsError("TASKS_URL must begin with https://")
    account = env.get("TASKS_SERVICE_ACCOUNT", "")
    if "@" not in account:
        raise BadSettingsError("TASKS_SERVICE_ACCOUNT is not set: whose tokens tasks carry")
    return UrlTarget(base_url, account, env.get("TASKS_AUDIENCE") or base_url)


def _live_streams(env: Mapping[str, str], platform: str) -> int:
    text = env.get("LIVE_STREAMS", "")
    if not text:
        return 0 if platform == APP_ENGINE else LIVE_STREAMS
    if not text.isdecimal() or len(text) > 4 or int(text) > MAX_LIVE_STREAMS:
        raise BadSettingsError(f"LIVE_STREAMS must be a number from 0 to {MAX_LIVE_STREAMS}")
    if int(text) and platform == APP_ENGINE:
        raise BadSettingsError(
            "LIVE_STREAMS must be 0 on App Engine: it holds a response back until it is complete"
        )
    return int(text)


def _one_host(text: str) -> str | None:
    if "," in text or " " in text.strip():
        raise BadSettingsError(
            "MEMCACHE_HOSTS takes one host:port: with several, keys move when one is away"
        )
    return text.strip() or None
