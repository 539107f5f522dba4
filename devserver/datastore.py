"""The Datastore the app talks to: an emulator, started directly.

Which one, in this order:

1. The address in DATASTORE_EMULATOR_HOST: somebody else runs it.
2. An official emulator of the Google Cloud SDK. They differ in how transactions
   meet: the Datastore emulator (default) lets the first commit win, the
   Firestore emulator in Datastore mode (DATASTORE_EMULATOR=firestore) locks, as
   the service does.
3. A `datastore-emulator` program on PATH (the one written in Rust takes the
   flags used here). It keeps nothing across restarts.

What survives a restart, given a data folder: the Datastore emulator writes its
file in the background and once more when it is shut down; the Firestore
emulator writes an export only when it is shut down, so a killed dev server
forgets what that run wrote.
"""

import contextlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from devserver import ports, sdk
from devserver.errors import ServiceFailedError, ServiceMissingError
from devserver.processes import GuardedProcess, LineSink

KINDS = ("datastore", "firestore")
_READY_S = 40.0
_POLL_S = 0.05
_SHUTDOWN_S = 30.0
_PORT_ATTEMPTS = 3
_EXPORTS_KEPT = 2

_WAYS = """No Datastore emulator was found. Any one of these helps:
  - the Google Cloud SDK with its emulator:
      gcloud components install cloud-datastore-emulator
      (Debian, Ubuntu: apt-get install google-cloud-cli-datastore-emulator)
    An SDK in an unusual place is found through CLOUDSDK_ROOT.
  - the Firestore emulator instead: set DATASTORE_EMULATOR=firestore
      gcloud components install cloud-firestore-emulator
  - a `datastore-emulator` program on PATH: cargo install datastore-emulator
  - an emulator that already runs: set DATASTORE_EMULATOR_HOST=host:port"""


class DatastoreEmulator:
    """One emulator process, and the folder it keeps its data in."""

    def __init__(
        self,
        kind: str = "datastore",
        *,
        port: int = 0,
        data_dir: Path | None = None,
        log_dir: Path | None = None,
        on_line: LineSink | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Describe the emulator; nothing starts yet.

        Args:
            kind: "datastore" or "firestore", see the module.
            port: Where it listens; 0 takes a free port.
            data_dir: Keeps the data; None keeps it in memory.
            log_dir: Keeps its output.
            on_line: Called from another thread with each line of its output.
            env: Where to look for the SDK and Java.

        Raises:
            ServiceMissingError: kind is no emulator we know.
        """
        if kind not in KINDS:
            raise ServiceMissingError(f"DATASTORE_EMULATOR is one of {KINDS}, not {kind!r}.")
        self.kind = kind
        self.port = port
        self.data_dir = data_dir / kind if data_dir is not None else None
        self.log_dir = log_dir
        self.on_line = on_line
        self.env = env
        self.process: GuardedProcess | None = None
        self.product = ""

    @property
    def address(self) -> str:
        """host:port, for DATASTORE_EMULATOR_HOST."""
        return f"{ports.LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start the emulator and return when it answers.

        Raises:
            ServiceMissingError: no emulator, or no Java.
            ServiceFailedError: it ended or did not answer.
        """
        attempts = 1 if self.port else _PORT_ATTEMPTS
        for attempt in range(1, attempts + 1):
            if attempts > 1:
                self.port = ports.free_port()
            try:
                self._start_once()
            except ServiceFailedError:
                self._end()
                if attempt == attempts:
                    raise
            else:
                return

    def stop(self) -> None:
        """Save the data, if any is kept, and end the emulator."""
        if self.process is None:
            return
        if self.data_dir is not None and self.process.running:
            self._post("/shutdown")
            self.process.wait(_SHUTDOWN_S)
            _forget_old_exports(self.data_dir)
        self._end()

    def reset(self) -> None:
        """Drop all data; takes milliseconds."""
        self._post("/reset")

    def _start_once(self) -> None:
        command, grace_s = self._command(), 2.0 if self.data_dir is None else 10.0
        self.process = GuardedProcess(
            "datastore", command, grace_s=grace_s, log_dir=self.log_dir, on_line=self.on_line
        )
        self.process.start()
        deadline = time.monotonic() + _READY_S
        while not self._is_ready():
            if not self.process.wait(_POLL_S) and time.monotonic() < deadline:
                continue
            raise ServiceFailedError(_why_it_ended(self.process))

    def _end(self) -> None:
        if self.process is not None:
            self.process.stop()
            self.process = None

    def _command(self) -> list[str]:
        """Return the command of the first emulator there is."""
        emulator = sdk.EMULATORS[self.kind]
        jar = sdk.find_jar(emulator, self.env)
        if jar is not None:
            self.product = emulator.component
            java = [sdk.find_java(self.env), "-Duser.language=en", "-cp", str(jar)]
            flags = self._firestore() if self.kind == "firestore" else self._datastore()
            return [*java, emulator.main_class, *flags]
        program = shutil.which("datastore-emulator", path=self.env.get("PATH"))
        if program is None or self.kind == "firestore":
            raise ServiceMissingError(_WAYS)
        self.product = "datastore-emulator"
        listen = ["--grpc-host", ports.LOOPBACK, "--grpc-port", str(self.port)]
        control = ["--http-host", ports.LOOPBACK, "--http-port", str(ports.free_port())]
        return [program, *listen, *control, "--no-store-on-disk"]

    def _datastore(self) -> list[str]:
        flags = [
            "start",
            f"--host={ports.LOOPBACK}",
            f"--port={self.port}",
            "--firestore_in_datastore_mode",  # strong consistency, no 25-group limit
            "--store_index_configuration_on_disk=false",
        ]
        if self.data_dir is None:
            return [*flags, "--store_on_disk=false", "--testing"]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        storage = self.data_dir / "local_db.bin"
        return [*flags, f"--storage_file={storage}", str(self.data_dir)]

    def _firestore(self) -> list[str]:
        flags = [
            f"--host={ports.LOOPBACK}",
            f"--port={self.port}",
            "--database-mode=datastore-mode",
        ]
        if self.data_dir is None:
            return flags
        self.data_dir.mkdir(parents=True, exist_ok=True)
        flags.append(f"--export-on-exit={self.data_dir}")
        exports = _exports(self.data_dir)
        return [*flags, f"--import-data={exports[-1]}"] if exports else flags

    def _is_ready(self) -> bool:
        if self.product == "datastore-emulator":
            return ports.answers(ports.LOOPBACK, self.port)
        try:
            with urllib.request.urlopen(f"http://{self.address}/", timeout=2) as response:
                return bool(response.status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def _post(self, path: str) -> None:
        request = urllib.request.Request(f"http://{self.address}{path}", data=b"", method="POST")
        with (
            contextlib.suppress(urllib.error.URLError, http.client.HTTPException, OSError),
            urllib.request.urlopen(request, timeout=_SHUTDOWN_S) as response,
        ):
            response.read()


def _why_it_ended(process: GuardedProcess) -> str:
    """Return what to tell a person whose emulator did not start."""
    said = process.describe_end()
    if "UnsupportedClassVersionError" in said:
        return (
            "Java is too old for this emulator (SDK 528 runs on 17, later ones need 21). "
            "Install a newer one, for example: apt-get install default-jre-headless"
        )
    if "Address already in use" in said or "BindException" in said:
        return "The Datastore emulator's port was taken while it started."
    return f"The Datastore emulator did not start. It said:\n{said}"


def _exports(data_dir: Path) -> list[Path]:
    """Return the Firestore emulator's exports, the newest last."""
    found = data_dir.glob("*/*.overall_export_metadata")
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _forget_old_exports(data_dir: Path) -> None:
    """Each stop writes a whole new export: keep the last ones only."""
    for old in _exports(data_dir)[:-_EXPORTS_KEPT]:
        shutil.rmtree(old.parent, ignore_errors=True)
