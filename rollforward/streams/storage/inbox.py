"""What a worker takes out of its inbox: chunks of letters, in time first, each oldest first."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter

from rollforward.streams.model.bundle import KeyedRecord
from rollforward.streams.model.key_state import build_tuples
from rollforward.streams.storage.remote_calls import Commit, Key, StoredRow
from rollforward.streams.storage.schema import CHUNK, InboxRecord, fingerprint, late_at

_id_of = attrgetter("id")


@dataclass
class Bundle:
    """Letters that were taken out of chunks, without those whose ids are known."""

    chunks: Sequence[tuple[str, StoredRow]]
    inputs: list[KeyedRecord] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # Of the inputs; empty: it has none.
    places: list[tuple[int, int]] = field(default_factory=list)  # Chunk and letter of an input.
    repeated: list[tuple[int, int]] = field(default_factory=list)
    end: tuple[int, int] = (0, 0)
    met: set[str] = field(default_factory=set)

    def choose_all(
        self, chunk: int, letters: Sequence[InboxRecord], limit: int
    ) -> Sequence[InboxRecord]:
        """Choose the first letters of a chunk, which has no ids; `end` says how many."""
        chosen = letters[: limit - len(self.ids)]
        self.ids += repeat("", len(chosen))
        self.places += zip(repeat(chunk), range(len(chosen)), strict=False)
        self.end = chunk, len(chosen)
        return chosen

    def choose(
        self, chunk: int, letters: Sequence[InboxRecord], known: Collection[str], limit: int
    ) -> Iterator[InboxRecord]:
        """Choose those letters of a chunk that are new, up to so many inputs of the batch.

        `end` says behind which letter that was.
        """
        for place, each in enumerate(letters):
            self.end = chunk, place
            if len(self.ids) >= limit:
                return
            id_ = fingerprint(f"{each.stream} {each.id}") if each.id else ""
            if id_ and (id_ in known or id_ in self.met):
                self.repeated.append((chunk, place))
                continue
            self.met.add(id_)
            self.ids.append(id_)
            self.places.append((chunk, place))
            yield each
        self.end = chunk, len(letters)

    def take(self, count: int, commit: Commit) -> tuple[int, list[str]]:
        """Take the first inputs out of the inbox, by a commit.

        A chunk of which only a part was taken is written again without that.

        Returns:
            How many letters came again before the end of what was taken, and the ids of it.
        """
        last, letter = self.places[count] if count < len(self.inputs) else self.end
        for at, (name, found) in enumerate(self.chunks[: last + 1]):
            key = Key(CHUNK, name)
            if at < last or letter == len(found.body):
                commit.deletes.append((key, found.version))
            elif letter:
                commit.puts.append((key, found.body[letter:], found.version))
        repeated = sum(place < (last, letter) for place in self.repeated)
        return repeated, [each for each in self.ids[:count] if each]

    def name_of(self, number: int) -> str:
        """Name an input by its place: the name stays when its chunk loses its first letters."""
        chunk, letter = self.places[number]
        name, found = self.chunks[chunk]
        return f"{name.rpartition(':')[2]}.{len(found.body) - letter}"

    def is_cut(self, count: int) -> bool:
        """Return whether the first inputs are not all that was in the chunks."""
        left = len(self.chunks[self.end[0]][1].body) > self.end[1] if self.chunks else False
        return left or count < len(self.inputs)


def gather(
    chunks: Sequence[tuple[str, StoredRow]],
    known: Collection[str],
    limit: int,
    *,
    are_decoded: bool = True,
) -> Bundle:
    """Take letters out of chunks, up to a number.

    Args:
        are_decoded: Whether the inputs have values; if not, nothing that a letter says can raise.
    """
    batch = Bundle(chunks)
    for number, (name, found) in enumerate(chunks):
        letters = found.body
        chosen: Sequence[InboxRecord]
        if any(map(_id_of, letters)):
            chosen = list(batch.choose(number, letters, known, limit))
        else:
            chosen = batch.choose_all(number, letters, limit)
        batch.inputs += inputs_of(chosen, late_at=late_at(name), are_decoded=are_decoded)
        if batch.end[1] < len(letters):
            break
    return batch


def inputs_of(
    letters: Sequence[InboxRecord], *, late_at: int, are_decoded: bool = True
) -> list[KeyedRecord]:
    """Return letters as a batch gets them, each with a value of its own."""
    if not letters:
        return []
    keys, times, streams, ids, texts = zip(*letters, strict=True)
    values = json.loads(f"[{','.join(texts)}]") if are_decoded else (None,) * len(letters)
    late = (late_at,) * len(letters)
    return list(
        build_tuples(KeyedRecord, zip(keys, values, times, streams, late, ids, texts, strict=True))
    )


def has_ids(chunks: Sequence[tuple[str, StoredRow]]) -> bool:
    """Return whether a letter has an id: of one chunk some may, and others not."""
    return any(any(map(_id_of, found.body)) for _, found in chunks)
