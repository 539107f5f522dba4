"""Makes class-data archives, as `make setup` has it done.

An emulator runs once for it, is asked what an app asks, and archives the classes that it has
loaded when it ends. Without archives emulators start, too, but slower.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import grpc
import psutil
from google.cloud.datastore_v1.types import (
    BeginTransactionRequest,
    CommitRequest,
    Entity,
    Key,
    KindExpression,
    LookupRequest,
    Mutation,
    PartitionId,
    Query,
    RunQueryRequest,
    Value,
)

from rollforward.local.errors import PlatformError, ServiceFailedError
from rollforward.local.services import class_data, sdk
from rollforward.local.services.datastore import KINDS, DatastoreEmulator
from rollforward.local.services.datastore_command import emulator_command

_PROJECT = "demo-training"
_ASK_S = 30.0
# Writing an archive takes a second or two, and a multiple of it beside other work.
_WRITE_S = 60.0


class _Trainee(DatastoreEmulator):
    """An emulator that writes an archive when it ends."""

    def __init__(self, kind: str, archive: Path) -> None:
        super().__init__(kind, project=_PROJECT)
        self.adapted = lambda command: class_data.written(command, archive)

    def finish(self) -> bool:
        """End it as a person would; return whether it ended on its own."""
        if self.process is None:
            return False
        with contextlib.suppress(ServiceFailedError, psutil.Error):
            self.process.process().terminate()
        return self.process.wait(_WRITE_S)


def make_missing() -> list[Path]:
    """Make an archive for each emulator that has none; return the new ones."""
    return [archive for kind in KINDS if (archive := _make(kind)) is not None]


def _make(kind: str) -> Path | None:
    """Make an emulator's archive; None if it has one, or none can be made."""
    with contextlib.suppress(PlatformError, OSError, grpc.RpcError):
        if sdk.find_jar(sdk.EMULATORS[kind]) is None:  # Another program's, if there is one.
            return None
        _, command = emulator_command(kind, "", 0, [], os.environ)
        archive = class_data.archive_of(command)
        if archive.is_file():
            return None
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            draft = Path(folder) / archive.name
            if _train(kind, draft) and draft.is_file():
                return draft.replace(archive)
    return None


def _train(kind: str, archive: Path) -> bool:
    """Run an emulator and ask it; return whether it wrote its archive and ended."""
    trainee = _Trainee(kind, archive)
    trainee.start()
    try:
        _call_all(trainee.address)
        return trainee.finish()
    finally:
        trainee.stop()


def _call_all(address: str) -> None:
    """Ask what an app asks: a commit, a read, a query, a transaction."""
    key = Key(
        partition_id=PartitionId(project_id=_PROJECT),
        path=[Key.PathElement(kind="Trained", name="a")],
    )
    row = Entity(key=key, properties={"number": Value(integer_value=1)})
    requests = {
        "Commit": CommitRequest(
            project_id=_PROJECT,
            mode=CommitRequest.Mode.NON_TRANSACTIONAL,
            mutations=[Mutation(upsert=row)],
        ),
        "Lookup": LookupRequest(project_id=_PROJECT, keys=[key]),
        "RunQuery": RunQueryRequest(
            project_id=_PROJECT,
            partition_id=PartitionId(project_id=_PROJECT),
            query=Query(kind=[KindExpression(name="Trained")]),
        ),
        "BeginTransaction": BeginTransactionRequest(project_id=_PROJECT),
    }
    with grpc.insecure_channel(address) as channel:
        for name, request in requests.items():
            path = f"/google.datastore.v1.Datastore/{name}"
            channel.unary_unary(path, request_serializer=type(request).serialize)(
                request, timeout=_ASK_S
            )


if __name__ == "__main__":
    for made in make_missing():
        print(f"Java's classes are archived in {made}")
