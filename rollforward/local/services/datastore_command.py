"""The command that starts a Datastore emulator: the first one that is there."""

import shutil
from collections.abc import Mapping, Sequence

from rollforward.local.errors import ServiceMissingError
from rollforward.local.services import sdk
from rollforward.local.system import ports

PROGRAM = "datastore-emulator"

_WAYS = """No Datastore emulator was found. Any one of these helps:
  - the Google Cloud SDK with the Firestore emulator, which locks as the service does:
      gcloud components install cloud-firestore-emulator
      (Debian, Ubuntu: apt-get install google-cloud-cli-firestore-emulator)
    An SDK in an unusual place is found through CLOUDSDK_ROOT.
  - the Datastore emulator instead (DATASTORE_EMULATOR=datastore, where both are installed):
      gcloud components install cloud-datastore-emulator
  - a `datastore-emulator` program on PATH: cargo install datastore-emulator
  - an emulator that already runs: set DATASTORE_EMULATOR_HOST=host:port"""


def usual_kind(env: Mapping[str, str]) -> str:
    """Return the kind of emulator to start when none was chosen.

    The one that locks, as the service does, or else the installed one.
    """
    return "firestore" if sdk.find_jar(sdk.FIRESTORE, env) else "datastore"


def emulator_command(
    kind: str, host: str, port: int, storage: Sequence[str], env: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return the product that was found, and the command that starts it.

    Args:
        kind: "datastore" or "firestore".
        host: The address to listen on.
        port: The port to listen on.
        storage: The flags of the SDK's Datastore emulator about its data.
        env: The environment that leads to the SDK and Java.

    Raises:
        ServiceMissingError: no emulator, or no Java.
    """
    emulator = sdk.EMULATORS[kind]
    jar = sdk.find_jar(emulator, env)
    if jar is not None:
        java = [sdk.find_java(env), "-Duser.language=en", "-cp", str(jar)]
        flags = _firestore(host, port) if kind == "firestore" else _datastore(host, port, storage)
        return emulator.component, [*java, emulator.main_class, *flags]
    program = shutil.which(PROGRAM, path=env.get("PATH"))
    if program is None or kind == "firestore":
        raise ServiceMissingError(_WAYS)
    listen = ["--grpc-host", host, "--grpc-port", str(port)]
    control = ["--http-host", host, "--http-port", str(ports.free_port(host))]
    return PROGRAM, [program, *listen, *control, "--no-store-on-disk"]


def _datastore(host: str, port: int, storage: Sequence[str]) -> list[str]:
    return [
        "start",
        f"--host={host}",
        f"--port={port}",
        "--firestore_in_datastore_mode",  # strong consistency, no 25-group limit
        "--store_index_configuration_on_disk=false",
        *storage,
    ]


def _firestore(host: str, port: int) -> list[str]:
    return [f"--host={host}", f"--port={port}", "--database-mode=datastore-mode"]
