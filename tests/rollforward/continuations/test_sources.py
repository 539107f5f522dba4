"""Sources: what is walked over is cut and read so that each item is met once."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.continuations import sources, upload_entities
from rollforward.continuations.sources import EntitySource, NumberSource, Source, Span
from rollforward.continuations.upload_entities import (
    KEPT_FOR,
    UploadChunk,
    UploadGoneError,
    put_upload,
    read_upload,
)
from tests.infra.world import World

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  As Datastore's times are.

on_both = pytest.mark.parametrize("services", ["datastore", "firestore"], indirect=True)


class Thing(ndb.Model):
    """Something under a name, a number, or another thing."""


class Aged(ndb.Model):
    """Something of an age."""

    age = ndb.IntegerProperty()


def walked(source: Source[Any], spans: list[Span], size: int) -> list[ndb.Key]:
    """Return the keys of what is met on all spans, in pages of a size, each loaded again."""

    def keys_of(items: Sequence[Any]) -> list[ndb.Key]:
        return [item if isinstance(item, ndb.Key) else item.key for item in items]

    met = []
    for span in spans:
        position: str | None = span.after
        while position is not None:
            page = source.read(Span(position, span.until), size)
            assert keys_of(page.items) == keys_of(source.load(page.load_from, page.names))
            met += keys_of(page.items)
            position = page.next
    return met


@on_both
@pytest.mark.parametrize("max_spans", [2, 8])
def test_a_kind_with_names_and_numbers_is_cut_into_chains(
    world: World, monkeypatch: pytest.MonkeyPatch, max_spans: int
) -> None:
    """Datastore sorts numbers before names; so does the cut, and each entity is met once."""
    monkeypatch.setattr(sources, "SAMPLES_PER_CHAIN", 64)
    with world.context():
        keys = [ndb.Key(Thing, f"n{i}") for i in range(1500)]
        keys += [ndb.Key(Thing, i + 1) for i in range(1500)]
        keys += [ndb.Key(Thing, 7, Thing, f"n{i}") for i in range(20)]
        for start in range(0, len(keys), 500):
            ndb.put_multi([Thing(key=key) for key in keys[start : start + 500]])
        source = EntitySource(Thing)

        spans = source.split(max_spans)

        if world.services.datastore_kind == "datastore":  # The other emulator keeps no sample.
            assert len(spans) > 1
        met = walked(source, spans, 500)
        assert len(met) == len(keys)
        assert set(met) == set(keys)


@on_both
@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("key_prefix", ["g:", ""])
@pytest.mark.parametrize("keys_only", [False, True])
def test_only_root_entities_of_a_name_are_met(
    world: World, keys_only: bool, key_prefix: str, size: int
) -> None:
    """What lies below them, and what has a number, is no item, and hides none."""
    with world.context():
        names = [f"{key_prefix}{digit}0" for digit in "0249af"]
        nested = [
            ndb.Key(Thing, names[i], Thing, below) for i in (1, 2, 5) for below in (1, 2, 3, "x")
        ]
        odd = [ndb.Key(Thing, 5), ndb.Key(Thing, 6, Thing, names[0])]
        keys = [ndb.Key(Thing, name) for name in names]
        ndb.put_multi([Thing(key=key) for key in [*keys, *nested, *odd]])
        source = EntitySource(Thing, key_prefix=key_prefix, keys_only=keys_only)

        assert walked(source, source.split(1), size) == keys
        assert walked(source, source.split(4), size) == keys


@pytest.mark.parametrize(
    "node",
    [
        *(Aged.age > 3, Aged.age != 3, Aged.age.NOT_IN([3]), "age"),
        ndb.AND(Aged.age == 3, Aged.age < 5),
    ],
)
def test_a_filter_by_which_no_page_could_be_read_is_refused(node: object) -> None:
    """Pages are in the order of keys; each of them would fail, until its task is dead."""
    with pytest.raises(ValueError, match=r"must be of equality, as .* skip the other"):
        EntitySource(Aged, node)


@on_both
@pytest.mark.parametrize(
    ("node", "ages"), [(Aged.age == 3, {3}), (Aged.age.IN([5, 3]), {3, 5})], ids=["one", "two"]
)
def test_entities_of_a_value_are_met_in_the_order_of_keys(
    world: World, node: object, ages: set[int]
) -> None:
    """Those of several values, too."""
    with world.context():
        entities = [Aged(id=f"n{number:02}", age=3 + number % 3) for number in range(30)]
        ndb.put_multi(entities)
        source = EntitySource(Aged, node)

        met = walked(source, source.split(1), 4)

    assert met == [entity.key for entity in entities if entity.age in ages]


@pytest.mark.parametrize("prefix", ["", "g:"])
@pytest.mark.parametrize("max_spans", [1, 2, 3, 16, 100, 256])
def test_hashed_names_are_cut_into_equal_parts(world: World, prefix: str, max_spans: int) -> None:
    """Each chain has the same number of their first two letters, or one more."""
    with world.context():
        spans = EntitySource(Thing, key_prefix=prefix).split(max_spans)

    ends = [int(span.until.removeprefix(prefix), 16) for span in spans[:-1]]
    sizes = [end - start for start, end in itertools.pairwise([0, *ends, 256])]
    assert len(sizes) == max_spans
    assert max(sizes) - min(sizes) <= 1
    assert [span.after for span in spans] == ["", *(span.until for span in spans[:-1])]


@on_both
def test_a_source_of_keys_reads_no_entity(world: World) -> None:
    """Its keys are a small operation, which costs nothing; loading them again asks nobody."""
    with world.context():
        things = [ndb.Key(Thing, f"g:{number}") for number in range(5)]
        ndb.put_multi([Thing(key=key) for key in things])
        source = EntitySource(Thing, keys_only=True)
        before = world.clients.meter.cost()

        page = source.read(Span(), 3)
        again = source.load(page.load_from, page.names)

        spent = world.clients.meter.cost() - before
        assert (list(page.items), again, page.next) == (things[:3], things[:3], page.names[-1])
        assert (spent.reads, spent.round_trips) == (0, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", range(9))
def test_each_number_is_met_once_on_any_chains(count: int, size: int) -> None:
    """The last page of a chain may be full, or hold one number."""
    source = NumberSource(count)
    for max_spans in (1, 2, 3, 20):
        met: list[str] = []
        for span in source.split(max_spans):
            position: str | None = span.after
            while position is not None:
                page = source.read(Span(position, span.until), size)
                assert source.load(page.load_from, page.names) == list(page.items)
                assert page.names or not count, "a page without numbers"
                met += page.names
                position = page.next

        assert met == [str(number) for number in range(1, count + 1)]


@pytest.mark.parametrize("size", [0, 3, 4, 11, 16, 17])
def test_an_uploaded_file_is_read_from_any_offset(
    world: World, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Its last chunk is shorter than the others, if need be empty; one that is gone is missed."""
    monkeypatch.setattr(upload_entities, "CHUNK_BYTES", 4)
    monkeypatch.setattr(upload_entities, "CHUNKS_PER_PUT", 2)
    content = bytes(range(size))
    with world.context():
        put_upload("upload", content, NOON)
        chunks = UploadChunk.query().order(UploadChunk._key).fetch()

        for offset in range(size + 1):
            assert b"".join(read_upload("upload", offset)) == content[offset:]
        assert [len(chunk.content) for chunk in chunks] == [4] * (size // 4) + [size % 4]
        assert {chunk.expires - NOON for chunk in chunks} == {KEPT_FOR}
        chunks[-1].key.delete()
        pieces = read_upload("upload", 0)
        assert [len(next(pieces)) for _ in chunks[:-1]] == [4] * (size // 4)
        with pytest.raises(UploadGoneError):
            next(pieces)
