"""`rollforward doctor`: the programs of this machine, the missing ones, and their fixes.

Exit code 1 if something is missing that `rollforward run` cannot do without.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rollforward.local import settings, shell
from rollforward.local.errors import PlatformError
from rollforward.local.services import memcached, sdk
from rollforward.local.system import debian, ports

PYTHON_OLDEST = (3, 11)
_MARKS = {True: "✓", False: "✕", None: "–"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool | None  # None: missing, and optional
    state: str
    fix: str = ""


def examine(env: Mapping[str, str] = os.environ, root: Path | None = None) -> Iterator[Finding]:
    """Yield the findings, the most important ones first.

    Args:
        root: The folder of the app, if it is another than the current one.
    """
    yield _python()
    yield _java(env)
    emulators = [_emulator(emulator, env) for emulator in sdk.EMULATORS.values()]
    outside = bool(env.get("DATASTORE_EMULATOR_HOST")) or bool(shutil.which("datastore-emulator"))
    if outside or any(finding.ok for finding in emulators):
        # One is enough for a run; the tests want both.
        emulators = [_optional(finding) for finding in emulators]
    yield from emulators
    yield _project(env)
    yield _memcached(env)
    yield _chromium()
    for name, usual in (("APP_PORT", settings.APP_PORT), ("CONSOLE_PORT", settings.CONSOLE_PORT)):
        yield _port(env, name, usual, root or Path.cwd())


def main(write: Callable[[str], None] = print) -> int:
    """Print the findings; return the exit code."""
    findings = list(examine())
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        write(f"  {_MARKS[finding.ok]} {finding.name:<{width}}  {finding.state}")
        if finding.fix:
            write(f"    {'':<{width}}  → {finding.fix}")
    problems = [finding.name for finding in findings if finding.ok is False]
    if problems:
        write(f"\nNot ready: {', '.join(problems)}.")
        return 1
    write("\nReady: rollforward run")
    return 0


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= PYTHON_OLDEST:
        return Finding("Python", True, version)
    return Finding("Python", False, version, "install Python 3.11 or newer, then: rm -rf .venv")


def _java(env: Mapping[str, str]) -> Finding:
    if env.get("DATASTORE_EMULATOR_HOST"):
        return Finding("Java", True, "not needed: DATASTORE_EMULATOR_HOST is set")
    fix = "apt-get install default-jre-headless, or brew install openjdk"
    try:
        java = sdk.find_java(env)
    except PlatformError:
        return Finding("Java", False, "missing", fix)
    version = sdk.java_version(java)
    if version is None:
        return Finding("Java", False, f"{java} does not run", fix)
    if version < sdk.JAVA_OLDEST:
        return Finding("Java", False, f"{version} is too old", fix)
    if version < sdk.JAVA_SOON:
        return Finding(
            "Java", True, f"{version}", f"emulators after SDK 528 will want {sdk.JAVA_SOON}"
        )
    return Finding("Java", True, f"{version}")


def _emulator(emulator: sdk.Emulator, env: Mapping[str, str]) -> Finding:
    name = f"{emulator.kind.capitalize()} emulator"
    jar = sdk.find_jar(emulator, env)
    if jar is not None:
        return Finding(name, True, str(jar.parent))
    fix = f"gcloud components install {emulator.component}, or apt-get install "
    return Finding(name, False, "missing", fix + emulator.debian_package)


def _optional(finding: Finding) -> Finding:
    if finding.ok:
        return finding
    return Finding(finding.name, None, "missing (the tests skip it)", finding.fix)


def _project(env: Mapping[str, str]) -> Finding:
    project = env.get("GOOGLE_CLOUD_PROJECT") or settings.PROJECT
    if project.startswith("demo-"):
        return Finding("Project", True, project)
    fix = f"unset GOOGLE_CLOUD_PROJECT, or set it to {settings.PROJECT}"
    return Finding("Project", False, f"{project} may be a real one", fix)


def _memcached(env: Mapping[str, str]) -> Finding:
    if env.get("MEMCACHE_HOSTS"):
        return Finding("memcached", True, f"MEMCACHE_HOSTS={env['MEMCACHE_HOSTS']}")
    program = memcached.find_program()
    if program is not None:
        return Finding("memcached", True, program)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        return Finding("memcached", None, "missing; `rollforward run` installs it")
    fix = "apt-get install memcached, or brew install memcached"
    return Finding("memcached", None, "missing (smaller batches, same results)", fix)


def _chromium() -> Finding:
    browser = debian.find(*debian.CHROMIUMS)
    if browser is None:
        fix = f"apt-get install {debian.CHROMIUM_SHELL}, or brew install chromium"
        return Finding("Chromium", None, "missing (browser tests need it)", fix)
    if browser == debian.find(debian.CHROMIUM_SHELL):
        return Finding("Chromium", True, browser)
    faster = f"in {debian.CHROMIUM_SHELL}, of Debian, browser tests compute less"
    return Finding("Chromium", True, browser, faster)


def _port(env: Mapping[str, str], name: str, usual: int, root: Path) -> Finding:
    text = env.get(name) or str(usual)
    label = f"Port {text}"
    if not text.isdigit():
        return Finding(label, False, f"{name} is no number", f"{name}={usual}")
    if text == "0" or ports.is_free(int(text)):
        return Finding(label, True, "free")
    fix = f"stop it, or set {name}={int(text) + 1}"
    platform = _platform_of(int(text), env, root)
    if platform is None:
        owner = ports.holder(int(text)) or "another process"
        return Finding(label, None, f"taken by {owner}", fix)
    if platform.root == root.resolve():
        return Finding(label, True, "in use by the platform of this folder, which runs")
    return Finding(label, None, f"taken by the platform of {platform.root}", fix)


def _platform_of(port: int, env: Mapping[str, str], root: Path) -> shell.Running | None:
    """Return the local platform that listens on a port for its console or its app, if one does."""
    for folder in (root, None):
        try:
            platform = shell.find(settings.console_url(env, folder))
        except PlatformError:
            continue
        urls = (platform.console, platform.environment.get("TASKS_URL", ""))
        if any(urlsplit(url).port == port for url in urls):
            return platform
    return None


if __name__ == "__main__":
    sys.exit(main())
