"""The demos' own settings: how mail leaves, and how much one caller may ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from rollforward.flask.context import settings
from rollforward.flask.settings import LOCAL, BadSettingsError, Settings, switch_of

MAX_PAGE_SIZE = 500
MAX_REQUESTS_PER_MINUTE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Settings):
    """Settings of this process, with those of the demos. `docs/settings.md` lists the variables."""

    smtp_host: str
    smtp_port: int
    mail_from: str
    smtp_user: str = ""
    smtp_password: str = ""
    smtp_starttls: bool = False
    page_size: int | None = None
    requests_per_minute: int | None = None

    @classmethod
    def read(cls, env: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields.

        Raises:
            BadSettingsError: something is missing, too weak, or does not fit the rest.
        """
        fields = super().read(env)
        smtp_host, smtp_port = _host_port(env.get("SMTP_HOST", ""), 587)
        demo_fields = {
            "smtp_host": smtp_host,
            "smtp_port": smtp_port,
            "mail_from": env.get(
                "MAIL_FROM", f"Rollforward <invitations@{fields['project']}.example>"
            ),
            "smtp_user": env.get("SMTP_USER", ""),
            "smtp_password": env.get("SMTP_PASSWORD", ""),
            "smtp_starttls": switch_of(env, "SMTP_STARTTLS", default=False),
            "page_size": _number(env, "PAGE_SIZE", MAX_PAGE_SIZE),
            "requests_per_minute": _requests_per_minute(env),
        }
        has_password = demo_fields["smtp_user"] or demo_fields["smtp_password"]
        if has_password and not demo_fields["smtp_starttls"] and fields["platform"] != LOCAL:
            raise BadSettingsError(
                "SMTP_STARTTLS is off: the password of the mail relay would travel in the clear"
            )
        return {**fields, **demo_fields}


def demo_settings() -> DemoSettings:
    """Return how this process runs."""
    return cast(DemoSettings, settings())


def _requests_per_minute(env: Mapping[str, str]) -> int | None:
    maximum = _number(env, "REQUESTS_PER_MINUTE", MAX_REQUESTS_PER_MINUTE)
    if maximum is not None and not env.get("MEMCACHE_HOSTS"):
        raise BadSettingsError("REQUESTS_PER_MINUTE needs MEMCACHE_HOSTS, where they are counted")
    return maximum


def _number(env: Mapping[str, str], name: str, maximum: int) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 20 or not 1 <= int(text) <= maximum:
        raise BadSettingsError(f"{name} must be a number from 1 to {maximum}")
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
