"""What a worker takes out of its inbox: chunks of letters, in time first, each oldest first."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter

from pipelines.streams.calls import Commit, Found, Key
from pipelines.streams.keys import Input, made
from pipelines.streams.rows import CHUNK, Letter, fingerprint, is_late

_id_of = attrgetter("id")


@dataclass
class Batch:
    """Letters that were taken out of chunks, without those whose ids are known."""

    chunks: Sequence[tuple[str, Found]]
    inputs: list[Input] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # Of the inputs; empty: it has none.
    places: list[tuple[int, int]] = field(default_factory=list)  # Chunk and letter of an input.
    repeated: list[tuple[int, int]] = field(default_factory=list)
    end: tuple[int, int] = (0, 0)
    met: set[str] = field(default_factory=set)

    def add(self, chunk: int, inputs: Sequence[Input]) -> int:
        """Add the first letters of a chunk, which has no ids; return how many."""
        self.inputs += inputs
        self.ids += repeat("", len(inputs))
        self.places += zip(repeat(chunk), range(len(inputs)), strict=False)
        return len(inputs)

    def add_new(
        self, chunk: int, inputs: Sequence[Input], known: Collection[str], limit: int
    ) -> int:
        """Add those letters of a chunk that are new; return behind which one the limit ends it."""
        for place, each in enumerate(inputs):
            if len(self.inputs) >= limit:
                return place
            id_ = fingerprint(f"{each.stream} {each.id}") if each.id else ""
            if id_ and (id_ in known or id_ in self.met):
                self.repeated.append((chunk, place))
                continue
            self.met.add(id_)
            self.inputs.append(each)
            self.ids.append(id_)
            self.places.append((chunk, place))
        return len(inputs)

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

    def is_full(self, count: int, max_chunks: int) -> bool:
        """Return whether more was waiting than the first inputs."""
        left = len(self.chunks[self.end[0]][1].body) > self.end[1] if self.chunks else False
        return left or count < len(self.inputs) or len(self.chunks) >= max_chunks


def gather(chunks: Sequence[tuple[str, Found]], known: Collection[str], limit: int) -> Batch:
    """Take letters out of chunks, up to a number."""
    batch = Batch(chunks)
    for number, (name, found) in enumerate(chunks):
        letters, late = found.body, is_late(name)
        if any(map(_id_of, letters)):
            taken = batch.add_new(number, inputs_of(letters, is_late=late), known, limit)
        else:
            left = limit - len(batch.inputs)
            taken = batch.add(number, inputs_of(letters[:left], is_late=late))
        batch.end = number, taken
        if taken < len(letters):
            break
    return batch


def inputs_of(letters: Sequence[Letter], *, is_late: bool) -> list[Input]:
    """Return letters as a batch gets them, each with a value of its own."""
    if not letters:
        return []
    keys, times, streams, ids, texts = zip(*letters, strict=True)
    values = json.loads(f"[{','.join(texts)}]")
    late = (is_late,) * len(letters)
    return list(made(Input, zip(keys, values, times, streams, late, ids, texts, strict=True)))


def has_ids(chunks: Sequence[tuple[str, Found]]) -> bool:
    """Return whether a letter has an id: of one chunk some may, and others not."""
    return any(any(map(_id_of, found.body)) for _, found in chunks)
