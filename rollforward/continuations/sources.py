"""Sources of continuations: anything that can be read in pages.

A source names its items by short texts, so that a page can remember which items it holds,
and marks places by positions, texts as well. A position must stay valid for as long as the
run: a key does, an offset into a changing list does not.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from google.cloud import ndb

from rollforward.continuations.entities import DONE, SKIPPED, ContinuationPage, pages_of
from rollforward.datastore.batched import count_within

I = TypeVar("I")  # noqa: E741  An item.
I_co = TypeVar("I_co", covariant=True)

# Of the sample that a split is cut from, how many keys stand for one chain.
SAMPLES_PER_CHAIN = 32
# A page's row of 1 MiB names its items in JSON, and has a reason for each of 1,000 besides.
MAX_NAMES_BYTES = 350_000


@dataclass(frozen=True)
class Span:
    """A stretch of a source: beyond `after`, up to but without `until`. "" means no bound."""

    after: str = ""
    until: str = ""


@dataclass(frozen=True)
class Slice(Generic[I_co]):
    """A page's worth of items.

    `load_from` is what `load` needs besides the names; `next` is the position where the page
    after this one starts, None at the end.
    """

    names: Sequence[str]
    items: Sequence[I_co | None]
    load_from: str
    next: str | None


class Source(Protocol[I_co]):
    """Readable in pages, from several places at once."""

    def split(self, max_spans: int) -> list[Span]:
        """Cut the source into at most `max_spans` spans that together hold everything."""
        ...

    def read(self, span: Span, size: int) -> Slice[I_co]:
        """Return the first items of a span."""
        ...

    def load(self, load_from: str, names: Sequence[str]) -> Sequence[I_co | None]:
        """Return items read before, in the order of their names; None: it is gone."""
        ...


def read_page(source: Source[I], span: Span, size: int) -> Slice[I]:
    """Return the first items of a span, at most `size`, and no more than a page's row can name."""
    read = source.read(span, size)
    sizes = (len(json.dumps(name)) + len(", ") for name in read.names)
    count = count_within(MAX_NAMES_BYTES, sizes)
    return source.read(span, count) if count < len(read.names) else read


class EntitySource:
    """The entities of a kind, in key order.

    A page is found by its key range, never by a cursor or an offset: rows that come and go
    elsewhere do not move it. Equality filters need no composite index in this order.
    """

    def __init__(
        self,
        kind: type[ndb.Model],
        *filters: Any,
        key_prefix: str | None = None,
        key_range: tuple[Any, Any] | None = None,
        keys_only: bool = False,
    ) -> None:
        """Name the entities.

        Args:
            filters: Equality filters of ndb, e.g. `Guest.party == "p1"`.
            key_prefix: Only root entities whose key name begins with this and continues with a hash
                in hex. Such a range can be split without looking at it.
            key_range: Only entities whose keys lie between these two.
            keys_only: Items are the keys alone, of which no entity is read. That of an entity that
                is deleted meanwhile is an item all the same.

        Raises:
            ValueError: a filter is none of equality.
        """
        for node in filters:
            _check_equality(node)
        self._kind = kind
        self._filters = filters
        self._key_prefix = key_prefix
        self._key_range = key_range
        self._keys_only = keys_only

    def split(self, max_spans: int) -> list[Span]:
        """Cut the entities into at most `max_spans` spans by their keys."""
        is_split_blindly = self._key_prefix is not None
        cuts = self._hex_cuts(max_spans) if is_split_blindly else self._sampled_cuts(max_spans)
        bounds = ["", *cuts, ""]
        return [Span(lower, upper) for lower, upper in itertools.pairwise(bounds)]

    def read(self, span: Span, size: int) -> Slice[Any]:
        """Return the first entities of a span, or their keys."""
        # One more than asked tells the end; what the query says of it cannot be relied on.
        entities = self._first(self._query(span), size + 1)
        items = entities[:size]
        names = [self._name(_key_of(item)) for item in items]
        return Slice(names, items, "", names[-1] if len(entities) > size else None)

    def load(self, load_from: str, names: Sequence[str]) -> Sequence[Any]:
        """Return entities by name, None for a deleted one; or their keys."""
        keys = [self._key(name) for name in names]
        return keys if self._keys_only else ndb.get_multi(keys)

    def _first(self, query: Any, limit: int) -> list[Any]:
        """Return the first entities of a query that are items, or their keys."""
        if self._key_prefix is None:
            return query.fetch(limit, keys_only=self._keys_only)  # type: ignore[no-any-return]
        entities: list[Any] = []
        remaining = query
        while len(entities) < limit:
            read = remaining.fetch(limit, keys_only=self._keys_only)
            # Below a name there may be entities of the same kind; a name alone is not their key.
            entities += [entity for entity in read if _key_of(entity).parent() is None]
            if len(read) < limit:
                break
            remaining = query.filter(self._kind._key > _key_of(read[-1]))
        return entities[:limit]

    def _query(self, span: Span) -> Any:
        key = self._kind._key
        query = self._kind.query(*self._filters).order(key)
        if self._key_range is not None:
            above, beyond = self._key_range
            query = query.filter(key > above, key < beyond)
        first_name = _BEFORE_HEX if self._key_prefix == "" else self._key_prefix
        if lower := self._bound(span.after, first_name):
            query = query.filter(key > lower)
        # ":" + "\U0010ffff" sorts behind every name that begins with ":".
        last_name = None if self._key_prefix is None else self._key_prefix + "\U0010ffff"
        if upper := self._bound(span.until, last_name):
            # A cut is a key that its left neighbour still takes: spans share no key.
            query = query.filter(key <= upper)
        return query

    def _bound(self, position: str, name: str | None) -> Any:
        if position:
            return self._key(position)
        return ndb.Key(self._kind, name) if name else None

    def _name(self, key: Any) -> str:
        """Return a key as text: its own name where that says it all."""
        name: str = key.id() if self._key_prefix is not None else key.urlsafe().decode()
        return name

    def _key(self, name: str) -> Any:
        if self._key_prefix is not None:
            return ndb.Key(self._kind, name)
        return ndb.Key(urlsafe=name.encode())

    def _hex_cuts(self, max_spans: int) -> list[str]:
        steps = [round(i * 256 / max_spans) for i in range(1, max_spans)]
        return [f"{self._key_prefix or ''}{step:02x}" for step in steps]

    def _sampled_cuts(self, max_spans: int) -> list[str]:
        """Cut at a random sample of keys, which the service keeps under `__scatter__`.

        The Firestore emulator keeps none: one span then.
        """
        if max_spans < 2 or self._key_range is not None:
            return []
        scatter = ndb.query.PropertyOrder("__scatter__")
        query = self._kind.query(order_by=[scatter])
        sample = sorted(query.fetch(max_spans * SAMPLES_PER_CHAIN, keys_only=True), key=_order)
        every = max(1, len(sample) // max_spans)
        return [self._name(key) for key in sample[every::every]][: max_spans - 1]


def _check_equality(node: Any) -> None:
    """Check that no filter needs an order of its own: pages are read in the order of keys.

    Raises:
        ValueError: one does, and each page would fail.
    """
    if isinstance(node, ndb.query.ConjunctionNode | ndb.query.DisjunctionNode):
        for inner in node:
            _check_equality(inner)
    elif not isinstance(node, ndb.query.Node) or (
        isinstance(node, ndb.query.FilterNode) and node._opsymbol != "=" and node._name != "__key__"
    ):
        raise ValueError(
            f'filters must be of equality, as Guest.party == "p1", got {node!r:.100}: the job can '
            "skip the other entities"
        )


# Sorts behind all numbers and before each name that begins with a digit in hex.
_BEFORE_HEX = "/"


def _key_of(item: Any) -> Any:
    return item if isinstance(item, ndb.Key) else item.key


def _order(key: Any) -> list[tuple[str, bool, Any]]:
    """Return what keys sort by in Datastore: at each step of their path numbers before names."""
    return [(kind, isinstance(id_, str), id_) for kind, id_ in key.pairs()]


class NumberSource:
    """The whole numbers from 1 to a count: for generated items. A position is a number."""

    def __init__(self, count: int) -> None:
        self._count = count

    def split(self, max_spans: int) -> list[Span]:
        """Cut the numbers into at most `max_spans` spans."""
        cuts = sorted({self._count * i // max_spans for i in range(1, max_spans)} - {0})
        bounds = ["", *map(str, cuts), ""]
        return [Span(lower, upper) for lower, upper in itertools.pairwise(bounds)]

    def read(self, span: Span, size: int) -> Slice[int]:
        """Return the first numbers of a span."""
        lowest, highest = int(span.after or 0) + 1, int(span.until or self._count)
        numbers = range(lowest, min(lowest + size, highest + 1))
        names = [str(number) for number in numbers]
        return Slice(names, numbers, "", names[-1] if lowest + size <= highest else None)

    def load(self, load_from: str, names: Sequence[str]) -> Sequence[int]:
        """Return numbers by their names."""
        return [int(name) for name in names]


class FailedItems(Generic[I]):
    """The failed items of an ended run, as a source: one slice per page that had any."""

    def __init__(self, source: Source[I], run_id: str) -> None:
        self._source = source
        self._run_id = run_id

    def split(self, max_spans: int) -> list[Span]:
        """Return one span, of all pages of the run."""
        return [Span()]

    def read(self, span: Span, size: int) -> Slice[I]:
        """Return the failed items of the next page that has any."""
        for page in pages_of(self._run_id, start_after=span.after):
            if names := _unfinished(page):
                items = self._source.load(page.load_from, names)
                return Slice(names, items, page.load_from, page.key.id())
        return Slice([], [], "", None)

    def load(self, load_from: str, names: Sequence[str]) -> Sequence[I | None]:
        """Return items as the source of the run does."""
        return self._source.load(load_from, names)


def _unfinished(page: ContinuationPage) -> list[str]:
    letters = zip(page.items, page.receipts, strict=True)
    return [name for name, letter in letters if letter not in (DONE, SKIPPED)]
