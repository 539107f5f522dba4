"""The Datastore the app talks to: an emulator, started directly.

Which one, in this order:

1. The address in DATASTORE_EMULATOR_HOST: another program runs it.
2. An official emulator of the Google Cloud SDK. They differ in how transactions
   meet: the Firestore emulator in Datastore mode locks, as the service does; in
   the Datastore emulator the first commit wins. DATASTORE_EMULATOR chooses; the
   default is the one that locks, where it is installed
   (docs/adr/0023-the-emulator-that-locks.md).
3. A `datastore-emulator` program on PATH (the one written in Rust takes the
   flags used here). It keeps nothing across restarts.

None of them asks who calls: a page of any site can wipe one whose address it knows. So the address
is drawn at each start (docs/adr/0012-an-address-nobody-can-guess.md).

All of them keep everything in memory. Given a data folder, the SDK's emulators are saved from
outside (saves/saves.py) and loaded at the start. An emulator without a save of its own loads the
other one's. The Datastore emulator's own file is not used, because its saver deadlocks. Every 30 s
the saver takes a lock and waits for the commits, while a commit holds a lock that the saver needs
and waits for the saver's. Under load that happens within minutes, and from then on nothing is
answered and nothing saved.
"""

import functools
import http.client
import os
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollforward.local.errors import (
    NoResponseError,
    PlatformError,
    ServiceFailedError,
    ServiceMissingError,
)
from rollforward.local.saves.exports import Admin, FirestoreAdmin
from rollforward.local.saves.saves import Save, Saves
from rollforward.local.services import class_data
from rollforward.local.services.datastore_command import PROGRAM, emulator_command
from rollforward.local.system import ports
from rollforward.local.system.processes import GuardedProcess, LineSink, until_idle

KINDS = ("firestore", "datastore")
_READY_S = 40.0
_POLL_S = 0.05
_GRACE_S = 2.0
_IDLE_WITHIN_S = 3.0
_PORT_ATTEMPTS = 3
_LARGE_BYTES = 5_000_000
# What the Datastore emulator says, in passing, of a file that it then leaves out.
_NOT_LOADED = "Failed to load from the backing store"


class DatastoreEmulator:
    """One emulator process, and the folder it keeps its data in."""

    def __init__(
        self,
        kind: str = "datastore",
        *,
        port: int = 0,
        data_dir: Path | None = None,
        project: str = "demo-local",
        databases: Sequence[str] = ("",),
        log_dir: Path | None = None,
        on_line: LineSink | None = None,
        say: Callable[[str], None] = lambda text: None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Describe the emulator; nothing starts yet.

        Args:
            kind: "datastore" or "firestore", see the module.
            port: The port to listen on at 127.0.0.1; 0 draws an address that other programs cannot
                guess.
            data_dir: Keeps the data; None keeps it in memory.
            project: The project that owns the data.
            databases: Which of its databases, where the emulator saves them one by one.
            log_dir: Keeps its output.
            on_line: Called from another thread with each line of its output.
            say: Called with a line for the person at the terminal.
            env: The environment that leads to the SDK and Java.

        Raises:
            ServiceMissingError: kind is no emulator we know.
        """
        if kind not in KINDS:
            raise ServiceMissingError(f"DATASTORE_EMULATOR is one of {KINDS}, not {kind!r}.")
        self.kind = kind
        self.host = ports.LOOPBACK
        self.port = port
        self.data_dir = data_dir / kind if data_dir is not None else None
        self.project = project
        self.databases = tuple(databases)
        self.log_dir = log_dir
        self.on_line = on_line
        self.say = say
        self.env = env
        self.adapted: Callable[[Sequence[str]], list[str]] = class_data.mapped
        self.process: GuardedProcess | None = None
        self.product = ""
        self.saved: Save | None = None
        self.began_empty = False  # Its folder held nothing to load.
        self._saved_version = -1
        self._saving = threading.Lock()

    @property
    def address(self) -> str:
        """host:port, for DATASTORE_EMULATOR_HOST."""
        return f"{self.host}:{self.port}"

    @property
    def is_kept(self) -> bool:
        """True if its data survives a restart."""
        return self.data_dir is not None and self.product != PROGRAM

    def start(self) -> None:
        """Start the emulator, load the save, and return when it answers.

        Raises:
            ServiceMissingError: no emulator, or no Java.
            ServiceFailedError: it ended, did not answer, or cannot read the save.
        """
        self._start_process()
        if not self.is_kept:
            return
        try:
            self._load()
        except BaseException:
            self._end()
            raise

    def changed_to(self) -> int | None:
        """Return the version that is not saved yet, None if there is nothing to save.

        Raises:
            NoResponseError: it does not answer.
        """
        version = self.admin.version() if self.is_kept and self.process is not None else None
        return None if version == self._saved_version else version

    def save(self, as_of: float = 0.0, *, is_last: bool = False, may_export: bool = True) -> bool:
        """Save its data if they changed since the last save; return whether it did.

        Else the last save moves to this time: Cloud Tasks goes back to it at the next start.

        Nobody may ask the emulator anything meanwhile: its export changes rows in place, and a
        commit that reads one just then fails in the middle.

        Args:
            as_of: The time on Cloud Tasks' clock.
            is_last: Nobody asks it anything any more: it is saved even if it does not rest.
            may_export: False: data that have changed are left to a later save.

        Raises:
            PlatformError: it does not answer, does not come to rest, or cannot write.
        """
        with self._saving:
            version = self.changed_to()
            if self.process is None or (version is not None and not may_export):
                return False
            if version is None:
                if self.saved is not None and as_of > self.saved.as_of:
                    self.saved = self._saves.confirm(self.saved, as_of)
                return False
            is_idle = until_idle(self.process.process(), _IDLE_WITHIN_S)
            if not is_idle and not is_last:
                raise NoResponseError("Datastore has not come to rest.")
            try:
                self.saved = self._saves.write(self._export, as_of, time.time())
            except OSError as error:
                raise ServiceFailedError(f"Datastore could not be saved: {error}") from error
            self._saved_version = version
            return True

    def stop(self) -> None:
        """End the emulator. Unsaved changes are gone."""
        self._end()

    def kill(self) -> None:
        """End the emulator at once, also one that is being saved."""
        if self.process is not None:
            self.process.kill()

    @functools.cached_property
    def admin(self) -> Admin:
        """The emulator's interface in addition to the API; it has one once it has its port."""
        kind = FirestoreAdmin if self.kind == "firestore" else Admin
        return kind(self.address, self.project, self.databases)

    @property
    def _saves(self) -> Saves:
        if self.data_dir is None:
            raise RuntimeError("this emulator keeps nothing")
        return Saves.of(self.data_dir, self.project)

    def _export(self, folder: Path) -> tuple[Mapping[str, str], int]:
        # The count comes after the rows: then it is beyond the id of each of them.
        overall = self.admin.export(folder)
        return overall, self.admin.next_id()

    def _load(self) -> None:
        """Load the newest save; without one, data of another emulator or version in the folder."""
        self.saved = self._saves.newest()
        if self.saved is None:
            self.began_empty = not self._adopt()
        else:
            self._load_save(self.saved)
        if not self.began_empty:  # Else it is saved soon: Cloud Tasks goes back to a save alone.
            self._saved_version = self.admin.version()

    def _load_save(self, save: Save) -> None:
        if (size_bytes := save.size_bytes()) > _LARGE_BYTES:
            self.say(f"loading {size_bytes / 1e6:.0f} MB that were saved ...")
        try:
            self.admin.load(save.paths())
        except PlatformError as error:
            raise ServiceFailedError(
                f"Datastore cannot load what was saved in {save.folder}: {error} "
                "Move that folder away to start from the save before it."
            ) from error
        self.admin.skip_ids(save.next_id)

    def _adopt(self) -> bool:
        """Take over what an earlier version has left, or else the other emulator's save, if any.

        An earlier version let the emulators write their own files.
        """
        assert self.data_dir is not None
        storage = self.data_dir / "local_db.bin"
        if self.kind == "firestore":
            exports = sorted(
                self.data_dir.glob("*/*.overall_export_metadata"),
                key=lambda path: path.stat().st_mtime,
            )
            if exports:
                self.say(f"taking over the data in {exports[-1].parent}")
                self.admin.load({"": str(exports[-1])})
                return True
        elif storage.exists():
            self.say(f"taking over the data in {storage}")
            self._load_save(self._converted(storage))
            return True
        # Both read each other's exports, but not those of several databases.
        [other] = {*KINDS} - {self.kind}
        save = Saves.of(self.data_dir.parent / other, self.project).newest()
        if save is not None and self.databases == ("",):
            self.say(f"taking over what the {other.capitalize()} emulator had saved")
            self._load_save(save)
            self.saved = save
            return True
        return False

    def _converted(self, storage: Path) -> Save:
        """Return a save of the Datastore emulator's own file.

        An emulator that no other program calls reads a copy of it, and exports it.
        """
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "local_db.bin"
            shutil.copyfile(storage, copy)
            reader = _Reader(copy, project=self.project, env=self.env)
            try:
                reader.start()
                self.saved = self._saves.write(reader._export, 0.0, storage.stat().st_mtime)
            finally:
                reader.stop()
        return self.saved

    def reset(self) -> None:
        """Drop all data; takes milliseconds."""
        url = f"http://{self.address}/reset"
        request = urllib.request.Request(url, data=b"", method="POST")
        with urllib.request.urlopen(request, timeout=_READY_S) as response:
            response.read()

    def _start_process(self) -> None:
        if self.port:
            self.say(f"any page in your browser can wipe Datastore on the fixed port {self.port}")
        attempts = 1 if self.port else _PORT_ATTEMPTS
        for attempt in range(1, attempts + 1):
            if attempts > 1:
                self.host, self.port = ports.hidden_address()
                ports.pass_proxies_by(self.host)
            try:
                self._start_once()
            except ServiceFailedError:
                self._end()
                if attempt == attempts:
                    raise
            else:
                return

    def _start_once(self) -> None:
        self.product, command = emulator_command(
            self.kind, self.host, self.port, self._storage(), self.env
        )
        self.process = GuardedProcess(
            "datastore",
            self.adapted(command),
            grace_s=_GRACE_S,
            log_dir=self.log_dir,
            on_line=self.on_line,
        )
        self.process.start()
        deadline = time.monotonic() + _READY_S
        while not _is_ready(self.product, self.host, self.port):
            if not self.process.wait(_POLL_S) and time.monotonic() < deadline:
                continue
            raise ServiceFailedError(_exit_reason(self.process))

    def _end(self) -> None:
        if "admin" in vars(self):
            self.admin.close()
            del self.admin
        if self.process is not None:
            self.process.stop()
            self.process = None

    def _storage(self) -> list[str]:
        """Return the flags that say where the Datastore emulator keeps its data."""
        return ["--store_on_disk=false", "--testing"]


class _Reader(DatastoreEmulator):
    """A Datastore emulator that reads a storage file, for this process only."""

    def __init__(self, storage: Path, *, project: str, env: Mapping[str, str]) -> None:
        self._is_readable = True
        super().__init__(project=project, on_line=self._note, env=env)
        self._file = storage

    def start(self) -> None:
        """Start it and return when it has read the file.

        Raises:
            ServiceFailedError: it cannot read it.
        """
        super().start()
        if not self._is_readable:
            raise ServiceFailedError(
                "The data of an earlier run in .dev/datastore/datastore/local_db.bin is damaged: "
                "the Datastore emulator cannot read it. Move that file away to start without it."
            )

    def _storage(self) -> list[str]:
        return [f"--storage_file={self._file}", str(self._file.parent)]

    def _note(self, line: str) -> None:
        if _NOT_LOADED in line:
            self._is_readable = False


def _is_ready(product: str, host: str, port: int) -> bool:
    if product == PROGRAM:
        return ports.accepts_connections(host, port)
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/", timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def _exit_reason(process: GuardedProcess) -> str:
    """Return what to tell a person whose emulator did not start."""
    ending = process.describe_end()
    if "UnsupportedClassVersionError" in ending:
        return (
            "Java is too old for this emulator (SDK 528 runs on 17, later ones need 21). "
            "Install a newer one, for example: apt-get install default-jre-headless"
        )
    if "Address already in use" in ending or "BindException" in ending:
        return "The Datastore emulator's port was taken while it started."
    return f"The Datastore emulator did not start. It said:\n{ending}"
