"""Processes that are killed in the middle of a transaction, where the store locks what it read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from google.cloud import ndb
from google.cloud.datastore_v1.types import CommitRequest

from rollforward.runtime import open_datastore
from rollforward.runtime.process.open_transactions import OpenTransactions
from rollforward.runtime.process.processes import LockedFiles, ProcessFile
from rollforward.testing.services import PROJECT
from tests.infra.stack import ROOT

HOLDER = """
import sys
from google.cloud import ndb
from rollforward.datastore.transactions import transact
from rollforward.runtime import open_datastore
from rollforward.runtime.process.open_transactions import OpenTransactions
from rollforward.runtime.process.processes import LockedFiles

class Note(ndb.Model):
    text = ndb.TextProperty()

_, project, emulator, folder = sys.argv
transactions = OpenTransactions(LockedFiles(folder))
client = open_datastore(project, emulator=emulator, transactions=transactions)

def body():
    note = Note.get_by_id("held")
    print("holds it", flush=True)
    note.text = sys.stdin.readline().strip()
    note.put()

with client.context():
    transact(body, attempts=1)
print("committed", flush=True)
"""


class Note(ndb.Model):
    """A row that is held."""

    text = ndb.TextProperty()


@pytest.fixture
def emulator(datastore_address: Callable[[str], str]) -> str:
    """The one that locks, with a row."""
    address = datastore_address("firestore")
    with open_datastore(PROJECT, emulator=address).context():
        Note(id="held", text="before").put()
    return address


@pytest.fixture
def holder(emulator: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the row in a transaction, until it is told what to write."""
    command = [sys.executable, "-c", HOLDER, PROJECT, emulator, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds it\n"
        yield process
        process.kill()


@pytest.mark.process
def test_a_killed_process_leaves_no_lock_to_its_successor(
    holder: subprocess.Popen[str], emulator: str, tmp_path: Path
) -> None:
    """Its transaction is rolled back by the process that starts next.

    A write that finds the row locked fails, because it gives up long before the store does.
    """
    holder.kill()
    holder.wait()
    (left,) = tmp_path.glob("[!.]*")
    (held,) = ProcessFile.read(left.read_bytes())

    transactions = OpenTransactions(LockedFiles(str(tmp_path)))
    client = open_datastore(PROJECT, emulator=emulator, transactions=transactions)

    with client.context():
        Note(id="held", text="after").put()
    commit = CommitRequest(
        project_id=PROJECT, mode=CommitRequest.Mode.TRANSACTIONAL, transaction=held.transaction
    )
    with pytest.raises(grpc.RpcError, match="invalid or closed"):
        client.stub.commit(CommitRequest.pb(commit))
    assert not left.exists()


@pytest.mark.process
def test_a_living_process_keeps_its_transaction(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    """A sibling that starts rolls nothing back that somebody still works on."""
    (file,) = tmp_path.glob("[!.]*")

    recovered = OpenTransactions(LockedFiles(str(tmp_path))).recover()
    said, _ = holder.communicate("by the holder\n")

    assert (recovered, said) == (0, "committed\n")
    assert file.exists()
    assert ProcessFile.read(file.read_bytes()) == []
