"""The settings of a run, read once from the command line and the environment."""

import argparse
import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollforward.cloud_profile import BUNDLED, Profile, ProfileError
from rollforward.cloud_profile import load as load_profile
from rollforward.local import options as command_line
from rollforward.local import target
from rollforward.local.errors import NotLocalError, PlatformError, UsageError
from rollforward.local.services.datastore import KINDS
from rollforward.local.services.datastore_command import usual_kind
from rollforward.local.system import ports

APP_PORT, CONSOLE_PORT = 8080, 8000
TASKS_PORT, MEMCACHE_PORT, MAIL_PORT = 8123, 11222, 8025
# As MEMCACHE_HOSTS: the app runs as one that is deployed without memcached.
NO_CACHE = "none"
PROJECT = "demo-local"
LOCATION = "us-central1"
_LOCAL_PREFIX = "demo-"
DEV_DIR = ".dev"
_CONSOLE_FILE = "console"
# What a profile stands on: the service locks, too.
LOCKING = "firestore"

# Credentials and traces of a real platform: the app of a laptop must not see them.
_NOT_FOR_THE_APP = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_QUOTA_PROJECT",
    "GCLOUD_PROJECT",
    "GAE_APPLICATION",
    "GAE_ENV",
    "GAE_SERVICE",
    "GAE_VERSION",
    "K_SERVICE",
    "CLOUD_RUN_JOB",
    "K_REVISION",
)


@dataclass(frozen=True)
class Settings:
    """The choices of one run. A port of 0 takes a free one.

    Attributes:
        dev_dir: Keeps data, logs and the secret key; None keeps nothing.
        root: The current folder, where the app runs.
        target: The app, as `module:callable`.
        queues: The queue.yaml that was asked for; None looks for one.
        cron: The same for cron.yaml.
        services: The addresses of other services of the app, by name.
        datastore_port: 0 draws an address, too, when the emulator starts.
        datastore_host: An emulator that another program runs; "" starts one.
        datastore_database: The app's database; "" is the default one.
        memcache_hosts: A cache that another program runs; "" starts one, NO_CACHE none.
        profile: How slow the services are to be; None: as fast as emulators are.
        profile_path: Its file.
    """

    root: Path
    target: str
    queues: Path | None
    cron: Path | None
    services: Mapping[str, str]
    dev_dir: Path | None
    project: str
    app_port: int
    console_port: int
    tasks_port: int
    datastore_port: int
    memcache_port: int
    mail_port: int
    datastore_kind: str
    datastore_host: str
    datastore_database: str
    memcache_hosts: str
    profile: Profile | None
    profile_path: Path | None
    reload: bool
    json: bool
    verbose: bool

    @property
    def service_account(self) -> str:
        """The service account that tasks are delivered as."""
        return f"tasks@{self.project}.iam.gserviceaccount.com"


def read(
    arguments: Sequence[str], env: Mapping[str, str] = os.environ, root: Path | None = None
) -> Settings:
    """Return the settings of a command line, without its program.

    Raises:
        UsageError: an argument is unknown, or lacks its value.
        PlatformError: as of `chosen_by`.
    """
    return chosen_by(command_line.parser().parse_args(arguments), env, root)


def chosen_by(
    options: argparse.Namespace, env: Mapping[str, str] = os.environ, root: Path | None = None
) -> Settings:
    """Return the settings of this run, with every port chosen.

    Args:
        options: From a parser with `options.add_to`; an empty `target` takes the default one.
        env: The environment.
        root: The current folder, if it is another than the process's.

    Raises:
        NotLocalError: the project is not one of a laptop.
        PortTakenError: another program listens on a port that was asked for.
        UsageError: the profile cannot be read, several modules could be the target, or a service
            is not given as NAME=URL.
        PlatformError: a setting is no number, or no known name.
    """
    root = (root or Path.cwd()).resolve()
    profile_path = _profile_path(options.like, root)
    kind = env.get("DATASTORE_EMULATOR") or (LOCKING if profile_path else usual_kind(env))
    if kind not in KINDS:
        raise PlatformError(f"DATASTORE_EMULATOR is {' or '.join(KINDS)}, not {kind!r}.")
    return Settings(
        root=root,
        target=options.target or target.default(root),
        queues=options.queues,
        cron=options.cron,
        services=command_line.service_urls(options.service),
        dev_dir=None if options.memory else root / DEV_DIR,
        project=_project(env),
        app_port=_main_port(env, "APP_PORT", APP_PORT),
        console_port=_main_port(env, "CONSOLE_PORT", CONSOLE_PORT),
        tasks_port=_side_port(env, "TASKS_PORT", TASKS_PORT),
        datastore_port=_requested_port(env, "DATASTORE_PORT"),
        memcache_port=_side_port(env, "MEMCACHE_PORT", MEMCACHE_PORT),
        mail_port=_side_port(env, "MAIL_PORT", MAIL_PORT),
        datastore_kind=kind,
        datastore_host=env.get("DATASTORE_EMULATOR_HOST", ""),
        datastore_database=env.get("DATASTORE_DATABASE", ""),
        memcache_hosts=env.get("MEMCACHE_HOSTS", ""),
        profile=_profile(profile_path),
        profile_path=profile_path,
        reload=not options.no_reload,
        json=options.json,
        verbose=options.verbose,
    )


def console_url(env: Mapping[str, str], root: Path | None = None) -> str:
    """Return where the console is of a platform that runs already.

    Args:
        root: A folder; without a CONSOLE_PORT above 0, the platform that runs there.

    Raises:
        PlatformError: CONSOLE_PORT is no port.
    """
    if root is not None and not is_named(env, ""):
        with contextlib.suppress(OSError):
            if url := (root / DEV_DIR / _CONSOLE_FILE).read_text().strip():
                return url
    return f"http://{ports.LOOPBACK}:{_number(env, 'CONSOLE_PORT', CONSOLE_PORT) or CONSOLE_PORT}"


def is_named(env: Mapping[str, str], console: str) -> bool:
    """Return whether a person has said which platform is meant, by its URL or its port."""
    return bool(console) or env.get("CONSOLE_PORT", "") not in ("", "0")


def check_folder(console: str, running: Path, here: Path) -> str:
    """Check that a platform which was not named runs the app of the current folder.

    Args:
        running: The folder of the app that runs there.

    Returns:
        A sentence about the app that runs, if it is of another folder and this one has none; or "".

    Raises:
        UsageError: this folder has an app of its own, which is not the one that runs there.
    """
    here = here.resolve()
    if running == here or running in here.parents:
        return ""
    if (here / DEV_DIR).is_dir() or target.has_app(here):
        raise UsageError(
            f"The local platform at {console} runs the app of {running}, and not the one of this "
            f"folder. Start this one (rollforward run), or name that one: --console {console}"
        )
    return f"The app of {running}, which runs at {console}:"


def note_console(dev_dir: Path | None, url: str) -> None:
    """Write the console's address where `console_url` looks for it; "" removes it."""
    if dev_dir is None:
        return
    if url:
        (dev_dir / _CONSOLE_FILE).write_text(f"{url}\n")
    else:
        (dev_dir / _CONSOLE_FILE).unlink(missing_ok=True)


def secret_key(dev_dir: Path | None) -> str:
    """Return the key that signs cookies, made once and kept with the data."""
    if dev_dir is None:
        return secrets.token_urlsafe(32)
    path = dev_dir / "secret_key"
    dev_dir.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    if not path.read_text().strip():  # Nothing is in it, too, if the disk was full.
        path.write_text(secrets.token_urlsafe(32))
    return path.read_text().strip()


def without_cloud(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what could lead to a real project."""
    local = {name: value for name, value in env.items() if name not in _NOT_FOR_THE_APP}
    # google-auth would otherwise look for a metadata server, which takes seconds.
    return {**local, "NO_GCE_CHECK": "true"}


def _profile_path(like: str, root: Path) -> Path | None:
    """Return the file of a profile: one of ours by its name, or one of the caller's own."""
    if not like:
        return None
    return BUNDLED if like == BUNDLED.stem else (root / like).resolve()


def _profile(path: Path | None) -> Profile | None:
    try:
        return load_profile(path) if path else None
    except ProfileError as error:
        raise UsageError(f"--like takes {BUNDLED.stem!r} or a profile's file: {error}") from error


def _project(env: Mapping[str, str]) -> str:
    project = env.get("GOOGLE_CLOUD_PROJECT") or PROJECT
    if not project.startswith(_LOCAL_PREFIX):
        raise NotLocalError(
            f"GOOGLE_CLOUD_PROJECT is {project!r}. Local projects begin with "
            f"{_LOCAL_PREFIX!r}, so that nothing here can touch a real one. "
            f"Unset it, or set it to {PROJECT}."
        )
    return project


def _main_port(env: Mapping[str, str], name: str, usual: int) -> int:
    """Choose a port that people have in their fingers: never another silently."""
    return ports.choose(_number(env, name, usual), name)


def _side_port(env: Mapping[str, str], name: str, usual: int) -> int:
    """Choose a port that only programs use: another is as good, unless it was asked for."""
    return _requested_port(env, name) if env.get(name) else ports.prefer(usual)


def _requested_port(env: Mapping[str, str], name: str) -> int:
    """Choose the port that was asked for; 0, if none was, has the service take a free one."""
    port = _number(env, name, 0)
    return ports.choose(port, name) if port else 0


def _number(env: Mapping[str, str], name: str, usual: int) -> int:
    text = env.get(name) or str(usual)
    if not text.isdigit() or int(text) > 65535:
        raise PlatformError(f"{name} is a port from 0 to 65535, not {text!r}.")
    return int(text)
