"""The addresses of everything, and the environment that tells them to the app and to a shell."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from rollforward.local import settings
from rollforward.local.settings import Settings

# All that an app of a shell's own needs to be opened on the same services (.env.example).
_FOR_A_SHELL = (
    "GOOGLE_CLOUD_PROJECT",
    "DATASTORE_EMULATOR_HOST",
    "DATASTORE_DATABASE",
    "CLOUD_TASKS_EMULATOR_HOST",
    "MEMCACHE_HOSTS",
    "SMTP_HOST",
    "TASKS_URL",
    "TASKS_LOCATION",
    "TASKS_SERVICE_ACCOUNT",
    "TASKS_CERTS_URL",
    "TASKS_ISSUER",
    "DEVSERVER_URL",
)


@dataclass(frozen=True)
class Addresses:
    """The addresses that a calling program needs: URLs of app and console, else host:port."""

    app: str
    console: str
    datastore: str
    tasks: str
    memcached: str
    mail: str
    project: str


def of_app(
    at: Addresses, chosen: Settings, secret_key: str, reports_folder: Path
) -> dict[str, str]:
    """Return the whole environment of the app.

    Args:
        reports_folder: The folder where its processes write their reports for the console.
    """
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
        "REPORTS_FOLDER": str(reports_folder),
        "CLOUD_PROFILE": str(chosen.profile_path or ""),
        "SECRET_KEY": secret_key,
        "PYTHONUNBUFFERED": "1",
    }


def of_shell(at: Addresses, chosen: Settings, secret_key: str) -> dict[str, str]:
    """Return the environment of a shell that uses the same services, with a secret key of its own.

    Pages show it, so it must not be the key that signs the app's cookies.
    """
    app = of_app(at, chosen, secret_key, Path())
    own_key = hashlib.sha256(f"shell {secret_key}".encode()).hexdigest()
    shared = {name: app[name] for name in _FOR_A_SHELL if app.get(name)}
    return {**shared, "SECRET_KEY": own_key}
