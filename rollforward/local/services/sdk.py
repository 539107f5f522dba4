"""Find the emulators of the Google Cloud SDK, and the Java that runs them.

The `gcloud` wrapper starts Java through two shells and Python. When it is stopped, it leaves the
second shell and Java behind. So the jars are found here and started directly.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollforward.local.errors import ServiceMissingError

JAVA_OLDEST, JAVA_SOON = 11, 21

_USUAL_ROOTS = (
    "/usr/lib/google-cloud-sdk",
    "/usr/lib64/google-cloud-sdk",
    "/usr/local/google-cloud-sdk",
    "/usr/local/share/google-cloud-sdk",
    "/usr/share/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "/opt/homebrew/share/google-cloud-sdk",
    "/opt/homebrew/Caskroom/google-cloud-sdk/latest/google-cloud-sdk",
    "/opt/homebrew/Caskroom/gcloud-cli/latest/google-cloud-sdk",
    "/snap/google-cloud-cli/current",
    "/snap/google-cloud-sdk/current",
    "/google-cloud-sdk",
    "~/google-cloud-sdk",
)
_ROOT_IN_WRAPPER = re.compile(r"(/[^\s\"':;]*?google-cloud-(?:sdk|cli)[^\s\"':;/]*)")


@dataclass(frozen=True)
class Emulator:
    """One emulator as the SDK ships it: where its jar lies and what its class is called."""

    kind: str
    jar: str
    main_class: str
    component: str
    debian_package: str


DATASTORE = Emulator(
    kind="datastore",
    jar="platform/cloud-datastore-emulator/CloudDatastore.jar",
    main_class="com.google.cloud.datastore.emulator.CloudDatastore",
    component="cloud-datastore-emulator",
    debian_package="google-cloud-cli-datastore-emulator",
)
FIRESTORE = Emulator(
    kind="firestore",
    jar="platform/cloud-firestore-emulator/cloud-firestore-emulator.jar",
    main_class="com.google.cloud.datastore.emulator.firestore.CloudFirestore",
    component="cloud-firestore-emulator",
    debian_package="google-cloud-cli-firestore-emulator",
)
EMULATORS = {emulator.kind: emulator for emulator in (DATASTORE, FIRESTORE)}


def find_jar(emulator: Emulator, env: Mapping[str, str] = os.environ) -> Path | None:
    """Return the emulator's jar, wherever the SDK is installed, or None."""
    for root in roots(env):
        jar = root / emulator.jar
        if jar.is_file():
            return jar
    return None


def roots(env: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Yield the places where an SDK may be, the most explicit first."""
    for name in ("CLOUDSDK_ROOT", "CLOUDSDK_ROOT_DIR"):
        if env.get(name):
            yield Path(env[name]).expanduser()
    gcloud = shutil.which("gcloud", path=env.get("PATH"))
    if gcloud:
        yield from _roots_of_wrapper(Path(gcloud))
    for usual in _USUAL_ROOTS:
        yield Path(usual).expanduser()


def find_java(env: Mapping[str, str] = os.environ) -> str:
    """Return the Java to run the emulators with.

    Raises:
        ServiceMissingError: there is none.
    """
    if env.get("JAVA_HOME"):
        java = Path(env["JAVA_HOME"]) / "bin" / "java"
        if java.is_file():
            return str(java)
    program = shutil.which("java", path=env.get("PATH"))
    if program is None:
        raise ServiceMissingError(
            "Java is missing, and the Datastore emulator needs it. "
            "Install one, for example: apt-get install default-jre-headless"
        )
    return program


def java_version(java: str) -> int | None:
    """Return the major version of this Java, or None if it does not say."""
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=20, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(output)


def parse_java_version(output: str) -> int | None:
    """Return the major version in the output of `java -version`.

    >>> parse_java_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> parse_java_version('java version "1.8.0_392"')
    8
    """
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


def _roots_of_wrapper(gcloud: Path) -> Iterator[Path]:
    """Yield the root above a gcloud, through links and through wrapper scripts."""
    resolved = gcloud.resolve()
    yield resolved.parent.parent
    try:
        head = resolved.read_bytes()[:4096].decode("utf-8", "ignore")
    except OSError:
        return
    for mention in _ROOT_IN_WRAPPER.findall(head):
        yield Path(mention)
