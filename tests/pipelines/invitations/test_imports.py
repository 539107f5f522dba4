"""Guest lists: each good row is a guest, once, and each bad row is listed."""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import replace
from typing import Any

import pytest

from models.invitations import GuestImport, guests_of
from pipelines.invitations import imports, parties
from pipelines.invitations.imports import ForeignImportError, ImportGoingOnError
from rollforward.continuations.csv_source import BadFileError
from rollforward.continuations.entities import FINISHED
from rollforward.continuations.progress import progress
from rollforward.continuations.upload_entities import UploadChunk, put_upload
from rollforward.tasks.errors import Unavailable
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.pipelines.invitations.host import (
    DETAILS,
    Host,
    cloud_tasks_away,
    once,
    one_emulator,
    people,
)


def test_good_rows_are_guests_and_bad_rows_are_listed(host: Host) -> None:
    """A row that cannot be read costs that row alone, and is named by its line."""
    done = host.invite(
        "name,email\nAnn,ann@example.com\nBob\n\nCid,cid@\n"
        '"Dan\nDoe",dan@example.com\nAnn again,ANN@example.com\n'
    )

    assert (done.state, done.totals.done, done.totals.failed, done.totals.skipped) == (
        FINISHED,
        2,
        2,
        1,
    )
    assert host.guests() == {"ann@example.com": "Ann", "dan@example.com": "Dan Doe"}
    listed = host.item_issues("i1")
    assert [(issue.name, issue.outcome) for issue in listed] == [
        ("3", "failed"),
        ("5", "failed"),
        ("8", "skipped"),
    ]
    assert "no mail address" in listed[0].reason
    assert "line 2 already" in listed[2].reason


def test_a_guest_of_two_files_is_one_guest(host: Host) -> None:
    """Across files, however the address is written, the first row counts."""
    host.invite(people("ann", "bob"))

    second = host.invite("Ann B.,Ann@Example.com\nCid,cid@example.com\n", "i2")

    assert (second.totals.done, second.totals.skipped) == (1, 1)
    assert set(host.guests()) == {"ann@example.com", "bob@example.com", "cid@example.com"}
    assert "on the list already" in host.item_issues("i2")[0].reason


@one_emulator
def test_the_form_of_an_import_without_a_task_launches_it(host: Host) -> None:
    """It was stored when Cloud Tasks did not answer, and whoever sent it sends it again."""
    with cloud_tasks_away(host.world), pytest.raises(Unavailable):
        host.start_import(people("ann"), "i1")

    assert not host.start_import(people("ann"), "i1")

    host.world.deliver_due()
    assert set(host.guests()) == {"ann@example.com"}


@one_emulator
def test_an_import_is_known_by_its_id(host: Host) -> None:
    """The same form sent twice, during and after the import, reads one file once."""
    first = host.start_import(people("ann"), "i1")
    during = host.start_import(people("ann"), "i1")
    host.world.settle()
    after = host.start_import(people("eve"), "i1")
    host.world.settle()

    assert (first, during, after) == (True, False, False)
    assert set(host.guests()) == {"ann@example.com"}
    with host.world.context():
        assert host.party.imports == ["i1"]


@one_emulator
def test_files_are_read_one_after_another(host: Host) -> None:
    """While a file is read the next one waits for its turn, with nothing stored of it."""
    host.start_import(people("ann"), "i1")

    with pytest.raises(ImportGoingOnError):
        host.start_import(people("bob"), "i2")

    with host.world.context():
        assert len(UploadChunk.query().fetch()) == 1
        assert GuestImport.get_by_id("i2") is None
    host.world.settle()
    assert host.start_import(people("bob"), "i2")


@one_emulator
def test_the_id_of_another_partys_file_takes_nothing_from_it(host: Host) -> None:
    """S28: a form with a foreign id is refused; the other party's file and run stay whole."""
    other = Host(host.world, "p2")
    other.create()
    host.start_import(people("ann"), "i1")

    with pytest.raises(ForeignImportError):
        other.start_import(people("eve"), "i1")
    host.world.settle()
    with pytest.raises(ForeignImportError):
        other.start_import(people("eve"), "i1")
    host.world.settle()

    assert set(host.guests()) == {"ann@example.com"}
    assert other.guests() == {}
    assert host.run("i1").totals.done == 1


@one_emulator
def test_two_parties_that_use_one_id_at_once_do_not_mix(host: Host) -> None:
    """S28: the party that commits first has the id; the other is told, and gets no guests of it."""
    other = Host(host.world, "p2")
    other.create()
    original = imports.put_upload

    def overtaken(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as back:
            back.setattr(imports, "put_upload", original)
            in_threads(lambda: other.start_import(people("ann"), "i1"))
        original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imports, "put_upload", overtaken)
        with pytest.raises(ForeignImportError):
            host.start_import(people("ann"), "i1")
    host.world.settle()

    assert host.guests() == {}
    assert set(other.guests()) == {"ann@example.com"}


@one_emulator
def test_a_file_that_cannot_be_read_leaves_nothing(host: Host) -> None:
    """A refused upload stores neither chunks nor a run, and stops no later one."""
    with pytest.raises(BadFileError):
        host.start_import(b"PK\x03\x04\x00", "i1")

    with host.world.context():
        assert UploadChunk.query().fetch() == []
        assert host.party.imports == []
    assert host.start_import(people("ann"), "i1")


@one_emulator
def test_a_file_of_several_pages_and_chunks_is_read_whole(host: Host) -> None:
    """A1: more rows than a page and more bytes than a chunk; each row once."""
    rows = [f"Guest {i} {'x' * 100},g{i}@example.com" for i in range(700)]

    done = host.invite("\n".join(rows))

    assert (done.totals.done, done.totals.failed, done.totals.pages) == (700, 0, 3)
    assert len(host.guests()) == 700


@one_emulator
def test_parties_do_not_share_guests(host: Host) -> None:
    """A2: an address invited to two parties is told by each of its own."""
    other = Host(host.world, "p10")
    other.create(replace(DETAILS, title="Other"))
    host.invite(people("ann"), "i1")
    other.invite(people("ann", "bob"), "i2")

    host.send()

    assert host.mails() == once("ann")


def test_another_file_under_the_same_form_does_not_mix_with_the_first(world: World) -> None:
    """A file whose import never began leaves nothing to the next one but its form's id."""
    long = "name,email\n" + "".join(f"G,g{i}@example.com\n" for i in range(5000))
    with world.context():
        parties.create_party(world.clients, "p" * 32, DETAILS)
        upload_id = f"{'i' * 32}-{hashlib.sha256(long.encode()).hexdigest()[:16]}"
        put_upload(upload_id, long.encode(), datetime.datetime(2030, 1, 1))  # noqa: DTZ001
        put_upload("i" * 32, long.encode(), datetime.datetime(2030, 1, 1))  # noqa: DTZ001
        imports.import_guests(
            world.clients, "p" * 32, "i" * 32, b"name,email\nAnn,ann@example.com\n", "a.csv"
        )
    world.settle()

    with world.context():
        assert [guest.address for guest in guests_of("p" * 32)] == ["ann@example.com"]


def test_an_import_under_way_is_not_at_its_end(host: Host) -> None:
    """The bar is full when the import is over: before, the file says how much there is."""
    rows = "".join(f"Guest {i},g{i}@example.com\n" for i in range(600))
    host.start_import("name,email\n" + rows, "i1")
    shares = []
    while due := host.world.engine.due():
        with host.world.context():
            shares.append(progress("i1").share)
        host.world.deliver(due[0].task_name)

    assert shares == pytest.approx([0, 250 / 600, 500 / 600], abs=0.01)
    assert host.run("i1").share == 1
