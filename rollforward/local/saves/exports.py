"""An emulator's interface in addition to the Datastore API: export, import, ids, and its version.

Both emulators of the SDK write and read the export format of the service. Nobody else may ask them
anything meanwhile (see DatastoreEmulator.save). An export lacks the counter for ids of incomplete
keys, so it is read and set again here. An emulator that counts from one again would allocate the
ids of stored rows.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.cloud.datastore_v1.types import Key, LookupRequest, LookupResponse, PartitionId

from rollforward.local.errors import NoResponseError, ServiceFailedError

# As long as a save of some hundred thousand rows takes on a slow disk.
EXPORT_S = 120.0
# The Datastore emulator imports about 8,000 rows a second.
IMPORT_S = 600.0
PING_S = 5.0
VERSION_S = 30.0

_IDS_A_CALL = 20_000
# How the emulators make an id of a counter: mirrored, so that neighbours lie far apart.
_FIRST_SCATTERED_ID = 2**52
_SCATTER_SHIFT = 13


class Admin:
    """The Datastore emulator's windows, for one project."""

    def __init__(self, address: str, project: str, databases: Iterable[str] = ("",)) -> None:
        """Ask the emulator at this address (host and port); "" is the default database."""
        self.address = address
        self.project = project
        self.databases = tuple(databases)
        # A connection that stays: the emulators leak a buffer with each one that is opened.
        self._channel = grpc.insecure_channel(address)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def ping(self) -> None:
        """Return when Datastore has answered a read.

        Raises:
            NoResponseError: it did not within PING_S.
        """
        self._read_missing_row(PING_S)

    def version(self) -> int:
        """Return a number that grows with every commit.

        The answer about a row that is not there has the version of the whole store.
        """
        return int(self._read_missing_row(VERSION_S).missing[0].version)

    def export(self, folder: Path) -> dict[str, str]:
        """Write everything into a folder; return the overall file of each database.

        Raises:
            NoResponseError: no answer.
            ServiceFailedError: it refused.
        """
        where = folder / "all"  # It must not exist: the emulator makes it.
        self._request(f"/v1/projects/{self.project}:export", EXPORT_S, output_url_prefix=str(where))
        return {"": _overall(where)}

    def load(self, overall: Mapping[str, str]) -> None:
        """Read exports back, as export() returned them.

        Raises:
            NoResponseError: no answer.
            ServiceFailedError: it refused.
        """
        for path in overall.values():
            self._request(f"/v1/projects/{self.project}:import", IMPORT_S, input_url=path)

    def next_id(self) -> int:
        """Return the count that the next id comes from, and use it up."""
        return self._allocate(1)

    def skip_ids(self, count: int) -> None:
        """Hand out no id that comes from a count up to this one."""
        while (lacking := count - self.next_id()) > 0:
            self._allocate(min(lacking, _IDS_A_CALL))

    def _allocate(self, number: int) -> int:
        """Use ids up; return the count of the last one."""
        keys = [{"partitionId": {"projectId": self.project}, "path": [{"kind": "Skipped"}]}]
        answer = self._request(
            f"/v1/projects/{self.project}:allocateIds", EXPORT_S, keys=keys * number
        )
        return counter_of(int(answer["keys"][-1]["path"][-1]["id"]))

    def _read_missing_row(self, timeout_s: float) -> LookupResponse:
        """Read a row that is not there."""
        partition = PartitionId(project_id=self.project)
        key = Key(partition_id=partition, path=[Key.PathElement(kind="Ping", name="devserver")])
        lookup = self._channel.unary_unary(
            "/google.datastore.v1.Datastore/Lookup",
            request_serializer=LookupRequest.serialize,
            response_deserializer=LookupResponse.deserialize,
        )
        try:
            return lookup(LookupRequest(project_id=self.project, keys=[key]), timeout=timeout_s)
        except grpc.RpcError as error:
            raise NoResponseError(f"Datastore did not answer: {error.code().name}.") from error

    def _request(self, path: str, timeout_s: float, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://{self.address}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                fields = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                words = error.read(1000).decode("utf-8", "replace")
            raise ServiceFailedError(
                f"Datastore answered {error.code} to {path}: {words}"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoResponseError(f"Datastore did not answer {path}: {error!r}") from error
        return fields if isinstance(fields, dict) else {}


class FirestoreAdmin(Admin):
    """The windows of the Firestore emulator in Datastore mode: one export a database."""

    def version(self) -> int:
        """Return a number that grows with every commit, and with time."""
        return round(self._read_missing_row(VERSION_S).read_time.timestamp() * 1e6)

    def export(self, folder: Path) -> dict[str, str]:
        """Write everything into a folder; return the overall file of each database."""
        overall = {}
        for database in self.databases:
            where = folder / (database or "default")
            self._request(
                f"/emulator/v1/projects/{self.project}:export",
                EXPORT_S,
                database=self._named(database),
                export_directory=str(folder),
                export_name=where.name,
            )
            overall[database] = _overall(where)
        return overall

    def load(self, overall: Mapping[str, str]) -> None:
        """Read exports back, as export() returned them."""
        for database, path in overall.items():
            self._request(
                f"/emulator/v1/projects/{self.project}:import",
                IMPORT_S,
                database=self._named(database),
                export_directory=path,
            )

    def skip_ids(self, count: int) -> None:
        """Hand out no id that comes from a count up to this one."""
        if count < 1:
            return
        key = {
            "partitionId": {"projectId": self.project},
            "path": [{"kind": "Skipped", "id": str(id_of(count))}],
        }
        self._request(f"/v1/projects/{self.project}:reserveIds", EXPORT_S, keys=[key])

    def _named(self, database: str) -> str:
        return f"projects/{self.project}/databases/{database}"


def counter_of(scattered_id: int) -> int:
    """Return the count that an emulator made an id of.

    >>> counter_of(5629499534213120)
    1
    """
    return _mirrored(scattered_id - _FIRST_SCATTERED_ID) >> _SCATTER_SHIFT


def id_of(counter: int) -> int:
    """Return the id that an emulator makes of a count.

    >>> id_of(1)
    5629499534213120
    """
    return _FIRST_SCATTERED_ID + _mirrored(counter << _SCATTER_SHIFT)


def _mirrored(number: int) -> int:
    return int(f"{number:064b}"[::-1], 2)


def _overall(folder: Path) -> str:
    """Return the file that an export is read back by.

    Raises:
        ServiceFailedError: the emulator wrote none.
    """
    metadata = next(folder.rglob("*.overall_export_metadata"), None)
    if metadata is None:
        raise ServiceFailedError(f"Datastore wrote no export into {folder}.")
    return str(metadata)
