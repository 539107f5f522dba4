"""Where everything is, and the environment variables that say so to the app and to a shell."""

import os
from dataclasses import dataclass

from devserver import settings
from devserver.settings import Settings

_FOR_A_SHELL = (
    "GOOGLE_CLOUD_PROJECT",
    "DATASTORE_EMULATOR_HOST",
    "CLOUD_TASKS_EMULATOR_HOST",
    "MEMCACHE_HOSTS",
    "SMTP_HOST",
)


@dataclass(frozen=True)
class Addresses:
    """What a program that started us wants to know: URLs of app and console, else host:port."""

    app: str
    console: str
    datastore: str
    tasks: str
    memcached: str
    mail: str
    project: str


def of_app(at: Addresses, chosen: Settings) -> dict[str, str]:
    """Return the whole environment of the app."""
    return {
        **settings.without_cloud(os.environ),
        "GOOGLE_CLOUD_PROJECT": at.project,
        "DATASTORE_EMULATOR_HOST": at.datastore,
        "CLOUD_TASKS_EMULATOR_HOST": at.tasks,
        "MEMCACHE_HOSTS": at.memcached,
        "SMTP_HOST": at.mail,
        "TASKS_URL": at.app,
        "TASKS_LOCATION": settings.LOCATION,
        "TASKS_SERVICE_ACCOUNT": chosen.service_account,
        "TASKS_CERTS_URL": f"{at.console}/oauth2/v1/certs",
        "TASKS_ISSUER": at.console,
        "DEVSERVER_URL": at.console,
        "SECRET_KEY": settings.secret_key(chosen.dev_dir),
        "PYTHONUNBUFFERED": "1",
    }


def of_shell(at: Addresses, chosen: Settings) -> dict[str, str]:
    """Return what a shell needs to use the same services."""
    app = of_app(at, chosen)
    return {name: app[name] for name in _FOR_A_SHELL}
