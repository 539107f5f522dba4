"""What a worker takes out of its inbox: chunks of letters, in time first, each oldest first."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pipelines.streams.calls import Commit, Found, Key
from pipelines.streams.keys import Input
from pipelines.streams.rows import CHUNK, LATE, fingerprint


@dataclass
class Batch:
    """Letters that were taken out of chunks, without those whose ids are known."""

    chunks: Sequence[tuple[str, Found]]
    inputs: list[Input] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # Of the inputs; empty: it has none.
    places: list[tuple[int, int]] = field(default_factory=list)  # Chunk and letter of an input.
    repeated: list[tuple[int, int]] = field(default_factory=list)
    end: tuple[int, int] = (0, 0)

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
    batch, met = Batch(chunks), set[str]()
    for number, (name, found) in enumerate(chunks):
        is_late = name.rsplit(":", 3)[1] == str(LATE)
        values = json.loads(f"[{','.join([letter.text for letter in found.body])}]")
        for place, (letter, value) in enumerate(zip(found.body, values, strict=True)):
            if len(batch.inputs) >= limit:
                batch.end = (number, place)
                return batch
            id_ = fingerprint(f"{letter.stream} {letter.id}") if letter.id else ""
            if id_ and (id_ in known or id_ in met):
                batch.repeated.append((number, place))
                continue
            met.add(id_)
            batch.inputs.append(
                Input(letter.key, value, letter.at, letter.stream, is_late, letter.id)
            )
            batch.ids.append(id_)
            batch.places.append((number, place))
        batch.end = (number, len(found.body))
    return batch


def has_ids(chunks: Sequence[tuple[str, Found]]) -> bool:
    """Return whether a letter has an id: of one chunk some may, and others not."""
    return any(letter.id for _, found in chunks for letter in found.body)
