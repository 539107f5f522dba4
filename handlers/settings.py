"""Settings, from the environment alone, checked once at the start.

Half a configuration is refused: an app with one emulator and one real service would write
somewhere that nobody meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.tasks.cloud_tasks import AppEngineTarget, UrlTarget

LOCAL, APP_ENGINE, CLOUD_RUN = "local", "appengine", "cloudrun"
DEMO_PREFIX = "demo-"
EMULATORS = ("DATASTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST")
LOCAL_ONLY = (*EMULATORS, "TASKS_CERTS_URL", "TASKS_ISSUER", "DEVSERVER_URL")
GOOGLE_CERTS_URL = "https://www.googleapis.com/oauth2/v1/certs"
GOOGLE_ISSUERS = ("https://accounts.google.com", "accounts.google.com")
MIN_SECRET = 32
MAX_PAGE_SIZE = 500
MAX_REQUESTS_PER_MINUTE = 1_000_000
# What examples are made of. By chance one stands in a random key once in a hundred thousand.
WEAK_SECRETS = (
    *("changeme", "change-me", "example", "password", "secret", "tests", "your-", "your_"),
    *("0123456", "abcdefg"),
)


class BadSettingsError(ValueError):
    """The environment does not describe a whole configuration; the text says what is off."""


@dataclass(frozen=True)
class Settings:
    """How this process runs. `docs/settings.md` lists the variables."""

    platform: str
    project: str
    secret_keys: tuple[str, ...]
    target: AppEngineTarget | UrlTarget
    smtp_host: str
    smtp_port: int
    mail_from: str
    location: str = "us-central1"
    database: str | None = None
    datastore_emulator: str | None = None
    cloud_tasks_emulator: str | None = None
    memcached: str | None = None
    certs_url: str = GOOGLE_CERTS_URL
    issuers: tuple[str, ...] = GOOGLE_ISSUERS
    smtp_user: str = ""
    smtp_password: str = ""
    smtp_starttls: bool = False
    devserver_url: str | None = None
    page_size: int | None = None
    requests_per_minute: int | None = None
    log_level: str = "INFO"

    @property
    def is_local(self) -> bool:
        return self.platform == LOCAL

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Settings:
        """Read the settings.

        Raises:
            BadSettingsError: something is missing, too weak, or does not fit the rest.
        """
        platform = _platform(env)
        project = env.get("GOOGLE_CLOUD_PROJECT") or "demo-local"
        if platform == LOCAL:
            _check_local(env, project)
        else:
            _check_cloud(env, project)
        smtp_host, smtp_port = _host_port(env.get("SMTP_HOST", ""), 587)
        return cls(
            platform=platform,
            project=project,
            secret_keys=_secrets(env.get("SECRET_KEY", "")),
            target=_target(env, platform),
            smtp_host=smtp_host,
            smtp_port=smtp_port,
            mail_from=env.get("MAIL_FROM", f"Rollforward <invitations@{project}.example>"),
            location=env.get("TASKS_LOCATION", "us-central1"),
            database=env.get("DATASTORE_DATABASE") or None,
            datastore_emulator=env.get("DATASTORE_EMULATOR_HOST") or None,
            cloud_tasks_emulator=env.get("CLOUD_TASKS_EMULATOR_HOST") or None,
            memcached=_one_host(env.get("MEMCACHE_HOSTS", "")),
            certs_url=env.get("TASKS_CERTS_URL") or GOOGLE_CERTS_URL,
            issuers=(env["TASKS_ISSUER"],) if env.get("TASKS_ISSUER") else GOOGLE_ISSUERS,
            smtp_user=env.get("SMTP_USER", ""),
            smtp_password=env.get("SMTP_PASSWORD", ""),
            smtp_starttls=_switch(env, "SMTP_STARTTLS"),
            devserver_url=env.get("DEVSERVER_URL") or None,
            page_size=_number(env, "PAGE_SIZE", MAX_PAGE_SIZE),
            requests_per_minute=_requests_per_minute(env),
            log_level=env.get("LOG_LEVEL", "INFO").upper(),
        )


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
    if (env.get("SMTP_USER") or env.get("SMTP_PASSWORD")) and not _switch(env, "SMTP_STARTTLS"):
        raise BadSettingsError(
            "SMTP_STARTTLS is off: the password of the mail relay would travel in the clear"
        )


def _switch(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "")
    if value not in ("", "0", "1"):
        raise BadSettingsError(f"{name} is 1, or 0, or empty, not {value!r}")
    return value == "1"


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


def _one_host(text: str) -> str | None:
    if "," in text or " " in text.strip():
        raise BadSettingsError(
            "MEMCACHE_HOSTS takes one host:port: with several, keys move when one is away"
        )
    return text.strip() or None


def _requests_per_minute(env: Mapping[str, str]) -> int | None:
    most = _number(env, "REQUESTS_PER_MINUTE", MAX_REQUESTS_PER_MINUTE)
    if most is not None and not env.get("MEMCACHE_HOSTS"):
        raise BadSettingsError("REQUESTS_PER_MINUTE needs MEMCACHE_HOSTS, where they are counted")
    return most


def _number(env: Mapping[str, str], name: str, most: int) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 20 or not 1 <= int(text) <= most:
        raise BadSettingsError(f"{name} must be a number from 1 to {most}")
    return int(text)


def _host_port(text: str, default_port: int) -> tuple[str, int]:
    """Return host and port of "host:port" or "host".

    >>> _host_port("relay.example:25", 587)
    ('relay.example', 25)
    """
    host, colon, port = text.rpartition(":") if ":" in text else (text, "", "")
    if not host:
        raise BadSettingsError("SMTP_HOST is not set: the mail relay, as host:port")
    if colon and not port.isdigit():
        raise BadSettingsError(f"SMTP_HOST {text!r} is not host:port")
    return host, int(port) if colon else default_port
