"""Bundles of inbox records: on-time chunks come first, each lane in order of time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from typing import Any

from rollforward.streams.model.bundle import KeyedRecord
from rollforward.streams.model.codecs import MARK, NO_CODECS, Codecs
from rollforward.streams.model.key_state import build_tuples
from rollforward.streams.storage.remote_calls import Commit, Key, StoredRow
from rollforward.streams.storage.schema import (
    CHUNK,
    InboxRecord,
    fingerprint,
    late_at,
    trace_of,
)

_id_of = attrgetter("id")


@dataclass
class Bundle:
    """Records chosen from chunks, without duplicates.

    Attributes:
        ids: Fingerprints of the inputs' ids; empty for an input without one.
        places: The place of each input: its chunk, and its index there.
        repeated: The places of skipped duplicates.
        end: The place after the last record that was looked at.
    """

    chunks: Sequence[tuple[str, StoredRow]]
    inputs: list[KeyedRecord] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    repeated: list[tuple[int, int]] = field(default_factory=list)
    end: tuple[int, int] = (0, 0)
    chosen_ids: set[str] = field(default_factory=set)

    def select_all(
        self, chunk: int, records: Sequence[InboxRecord], limit: int
    ) -> Sequence[InboxRecord]:
        """Choose the first records of a chunk without ids."""
        chosen = records[: limit - len(self.ids)]
        self.ids += repeat("", len(chosen))
        self.places += zip(repeat(chunk), range(len(chosen)), strict=False)
        self.end = chunk, len(chosen)
        return chosen

    def select(
        self, chunk: int, records: Sequence[InboxRecord], accepted: Collection[str], limit: int
    ) -> Iterator[InboxRecord]:
        """Choose the new records of a chunk, until the bundle has `limit` inputs."""
        for index, record in enumerate(records):
            self.end = chunk, index
            if len(self.ids) >= limit:
                return
            id_ = fingerprint(f"{record.stream} {record.id}") if record.id else ""
            if id_ and (id_ in accepted or id_ in self.chosen_ids):
                self.repeated.append((chunk, index))
                continue
            self.chosen_ids.add(id_)
            self.ids.append(id_)
            self.places.append((chunk, index))
            yield record
        self.end = chunk, len(records)

    def take(self, count: int, commit: Commit) -> tuple[int, list[str]]:
        """Remove the first inputs from the inbox, by a commit.

        A chunk that is only partly consumed is written again without the consumed records.

        Returns:
            The number of duplicates among the removed records, and the fingerprints of the others.
        """
        end_chunk, end_index = self.places[count] if count < len(self.inputs) else self.end
        for number, (name, row) in enumerate(self.chunks[: end_chunk + 1]):
            key = Key(CHUNK, name)
            if number < end_chunk or end_index == len(row.body):
                commit.deletes.append((key, row.version))
            elif end_index:
                commit.puts.append((key, row.body[end_index:], row.version))
        repeated = sum(place < (end_chunk, end_index) for place in self.repeated)
        return repeated, [id_ for id_ in self.ids[:count] if id_]

    def name_of(self, number: int) -> str:
        """Name an input by its distance from its chunk's end, where no records are removed.

        The chunk's trace is a part of it: versions that know no traces give the same name.
        """
        chunk, index = self.places[number]
        name, row = self.chunks[chunk]
        return f"{name.rpartition(':')[2]}.{len(row.body) - index}"

    @property
    def traceparents(self) -> list[str]:
        """Return the traces of the inputs, each once, in the order of the chunks; "": of none."""
        numbers = dict.fromkeys(chunk for chunk, _ in self.places)
        return list(dict.fromkeys(trace_of(self.chunks[number][0]) for number in numbers))

    def is_truncated(self, count: int) -> bool:
        """Return whether records remain in the chunks after the first inputs."""
        has_more = len(self.chunks[self.end[0]][1].body) > self.end[1] if self.chunks else False
        return has_more or count < len(self.inputs)


def gather(
    chunks: Sequence[tuple[str, StoredRow]],
    accepted: Collection[str],
    limit: int,
    codecs: Codecs = NO_CODECS,
    *,
    are_decoded: bool = True,
) -> Bundle:
    """Return a bundle of at most `limit` records from chunks.

    Args:
        accepted: Fingerprints of the ids that the interval has accepted before.
        are_decoded: Decode the values. If False, no record's content can raise an error.

    Raises:
        MissingCodeError: this code does not have the codec of a value.
    """
    bundle = Bundle(chunks)
    for number, (name, row) in enumerate(chunks):
        records = row.body
        chosen: Sequence[InboxRecord]
        if any(map(_id_of, records)):
            chosen = list(bundle.select(number, records, accepted, limit))
        else:
            chosen = bundle.select_all(number, records, limit)
        bundle.inputs += inputs_of(chosen, codecs, late_at=late_at(name), are_decoded=are_decoded)
        if bundle.end[1] < len(records):
            break
    return bundle


def inputs_of(
    records: Sequence[InboxRecord],
    codecs: Codecs = NO_CODECS,
    *,
    late_at: int,
    are_decoded: bool = True,
) -> list[KeyedRecord]:
    """Return records as inputs of a bundle, each with a value of its own.

    Raises:
        MissingCodeError: this code does not have the codec of a value.
    """
    if not records:
        return []
    keys, times, streams, ids, texts = zip(*records, strict=True)
    values: Sequence[Any]
    if not are_decoded:
        values = (None,) * len(records)
    elif MARK in (joined := ",".join(texts)):
        values = codecs.read_all(texts)
    else:
        values = json.loads(f"[{joined}]")
    late = (late_at,) * len(records)
    return list(
        build_tuples(KeyedRecord, zip(keys, values, times, streams, late, ids, texts, strict=True))
    )


def has_ids(chunks: Sequence[tuple[str, StoredRow]]) -> bool:
    """Return whether any record has an id: in one chunk, some may have one and others not."""
    return any(any(map(_id_of, row.body)) for _, row in chunks)
