"""The settings of a run, read once from the command line and the environment."""

import argparse
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rollforward.cloud_profile import BUNDLED, Profile, ProfileError
from rollforward.cloud_profile import load as load_profile
from rollforward.local import target
from rollforward.local.errors import NotLocalError, PlatformError, UsageError
from rollforward.local.services.datastore import KINDS
from rollforward.local.services.datastore_command import usual_kind
from rollforward.local.system import ports

APP_PORT, CONSOLE_PORT = 8080, 8000
TASKS_PORT, MEMCACHE_PORT, MAIL_PORT = 8123, 11222, 8025
PROJECT = "demo-local"
LOCATION = "us-central1"
_LOCAL_PREFIX = "demo-"
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
        datastore_port: 0 draws an address, too, when the emulator starts.
        datastore_host: An emulator that another program runs; "" starts one.
        datastore_database: The app's database; "" is the default one.
        memcache_hosts: A cache that another program runs; "" starts one.
        profile: How slow the services are to be; None: as fast as emulators are.
        profile_path: Its file.
    """

    root: Path
    target: str
    queues: Path | None
    cron: Path | None
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
    """Return the settings of this run, with every port chosen.

    Args:
        arguments: The command line, without the program.
        env: The environment.
        root: The current folder, if it is another than the process's.

    Raises:
        NotLocalError: the project is not one of a laptop.
        PortTakenError: another program listens on a port that was asked for.
        UsageError: an argument is unknown, or lacks its value, or names no profile.
        PlatformError: a setting is no number, or no known name.
    """
    options = _parser().parse_args(arguments)
    root = (root or Path.cwd()).resolve()
    profile_path = _profile_path(options.like, root)
    kind = env.get("DATASTORE_EMULATOR") or (LOCKING if profile_path else usual_kind(env))
    if kind not in KINDS:
        raise PlatformError(f"DATASTORE_EMULATOR is {' or '.join(KINDS)}, not {kind!r}.")
    return Settings(
        root=root,
        target=options.target,
        queues=options.queues,
        cron=options.cron,
        dev_dir=None if options.memory else root / ".dev",
        project=_project(env),
        app_port=_main_port(env, "APP_PORT", APP_PORT),
        console_port=_main_port(env, "CONSOLE_PORT", CONSOLE_PORT),
        tasks_port=_side_port(env, "TASKS_PORT", TASKS_PORT),
        datastore_port=_asked_port(env, "DATASTORE_PORT"),
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


def console_url(env: Mapping[str, str]) -> str:
    """Return where the console is of a platform that runs already.

    Raises:
        PlatformError: CONSOLE_PORT is no port.
    """
    return f"http://{ports.LOOPBACK}:{_number(env, 'CONSOLE_PORT', CONSOLE_PORT)}"


def secret_key(dev_dir: Path | None) -> str:
    """Return the key that signs cookies, made once and kept with the data."""
    if dev_dir is None:
        return secrets.token_urlsafe(32)
    path = dev_dir / "secret_key"
    if not path.exists():
        dev_dir.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
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
    return _asked_port(env, name) if env.get(name) else ports.prefer(usual)


def _asked_port(env: Mapping[str, str], name: str) -> int:
    """Choose the port that was asked for; 0, if none was, has the service take a free one."""
    port = _number(env, name, 0)
    return ports.choose(port, name) if port else 0


def _number(env: Mapping[str, str], name: str, usual: int) -> int:
    text = env.get(name) or str(usual)
    if not text.isdigit() or int(text) > 65535:
        raise PlatformError(f"{name} is a port from 0 to 65535, not {text!r}.")
    return int(text)


class _Parser(argparse.ArgumentParser):
    """Reports a bad argument as any other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. {self.prog} --help lists the options.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m rollforward.local",
        description="Start the app and everything it needs, on this machine only.",
        epilog="Ports: APP_PORT, CONSOLE_PORT, TASKS_PORT, DATASTORE_PORT, MEMCACHE_PORT, "
        "MAIL_PORT (0 takes a free one). DATASTORE_EMULATOR=datastore chooses the emulator "
        "that does not lock; DATASTORE_EMULATOR_HOST and MEMCACHE_HOSTS use one that already runs.",
    )
    parser.add_argument(
        "--target",
        default=target.DEFAULT,
        metavar="MODULE:CALLABLE",
        help="what returns the Flask app (%(default)s)",
    )
    parser.add_argument(
        "--queues",
        type=Path,
        metavar="PATH",
        help="the queue.yaml; else that of the target's package, else that of this folder",
    )
    parser.add_argument("--cron", type=Path, metavar="PATH", help="the cron.yaml; the same")
    parser.add_argument(
        "--like",
        default="",
        metavar="cloud|FILE",
        help="draw latencies and limits from a profile, on the Firestore emulator: the one that "
        "comes along (rollforward/cloud_profile/cloud.toml), or a file of your own in its form",
    )
    parser.add_argument("--memory", action="store_true", help="keep nothing across restarts")
    parser.add_argument("--no-reload", action="store_true", help="do not reload on save")
    parser.add_argument("--json", action="store_true", help="print the addresses as one JSON line")
    parser.add_argument("--verbose", action="store_true", help="show every line of every service")
    return parser
