"""Items of a queue: checked, written as JSON, and accepted."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, TypeVar, get_args

import pydantic
import pydantic_core

from rollforward.datastore.contexts import refuse_other_namespace
from rollforward.fork_join.entities import EpochId, PackId, receipt_key
from rollforward.runtime.errors import BadItemError
from rollforward.runtime.idempotency import check_idempotency_key, digest_of
from rollforward.runtime.texts import has_unpaired_surrogate, plain_text
from rollforward.runtime.type_adapters import json_of
from rollforward.tasks.parameters import check_plain, hints_of, is_for_clients, without_clients
from rollforward.tracing import current_traceparent

I = TypeVar("I")  # noqa: E741  An item.

# Parked, an item travels as text within text in a task of 100,000 bytes: at most twice as long.
MAX_ITEM_BYTES = 40_000
MAX_KEY_BYTES = 1_200
# Of items that are inserted together: by one commit, in few rows.
MAX_BATCH_ITEMS = 1_000
MAX_BATCH_BYTES = 900_000
# A pack that is bisected is a row for each item, in a commit that takes fewer than 500 writes.
MAX_PACK_ITEMS = 450
# Of a batch: with its receipt they are one commit.
MAX_BATCH_PACKS = 498
_FORM = """declare a queue in this form, perhaps without the clients; its items are of a dataclass:
    @fork_join("visits", queue="fork-join", period_s=30)
    def count_visits(clients: Clients, batch: Batch, items: Sequence[Visit]) -> None: ..."""


@dataclass(frozen=True)
class Accepted:
    """An item that is safe: it will be folded. `is_duplicate`: it was accepted before."""

    pack: str
    position: int
    is_duplicate: bool = False

    @property
    def opened(self) -> datetime:
        """When its batch was opened (UTC, naive)."""
        return EpochId.parse(PackId.parse(self.pack).epoch).opened


def accepted_items(batch: Accepted) -> list[Accepted]:
    """Return the items of a batch: its packs are one text, separated by line feeds."""
    return [
        Accepted(pack, position, batch.is_duplicate)
        for pack in batch.pack.split("\n")
        for position in range(PackId.parse(pack).items)
    ]


@dataclass(frozen=True)
class Insertion:
    """An item on its way in."""

    key: str
    item: str  # As JSON.
    idempotency_key: str | None = None
    keep_result: bool = False
    tag: str | None = None
    stated: str = ""  # The fields that the caller has set, as JSON; "": all of them.
    # Of items that are inserted together: each pack's, as JSON without brackets, and how many.
    packs: tuple[tuple[str, int], ...] = ()
    traceparent: str = field(default_factory=current_traceparent, compare=False)

    def receipt_key(self, queue: str) -> Any:
        """Return the key of its receipt; None: it has no idempotency key."""
        if self.idempotency_key is None:
            return None
        return receipt_key(queue, self.key, self.idempotency_key)

    @property
    def count(self) -> int:
        """How many items it has."""
        return sum(count for _, count in self.packs) or 1

    @property
    def bytes(self) -> int:
        return len(self.item.encode())

    @property
    def digest(self) -> str:
        """The digest of what was inserted; no JSON begins like a batch's."""
        stated = self.stated or self.item
        return digest_of(f"batch:{stated}" if self.packs else stated)

    def is_duplicate_of(self, digest: str) -> bool:
        """Return whether a digest is of this insertion.

        Versions that knew no batches digested all fields of an item.
        """
        return digest == self.digest or (not self.packs and digest == digest_of(self.item))


def check_key(key: object) -> str:
    """Return the key of items, or of a counter, as it is stored.

    Raises:
        BadItemError: they can have no such key.
    """
    if not isinstance(key, str):
        raise BadItemError(f"key must be a text, got {key!r:.100}")
    if has_unpaired_surrogate(key):
        raise BadItemError("key contains an unpaired surrogate")
    size = len(key.encode())
    if not 0 < size <= MAX_KEY_BYTES:
        raise BadItemError(f"key must have 1 to {MAX_KEY_BYTES} bytes, got {size}")
    return plain_text(key)


class ItemCodec(Generic[I]):
    """Writes the items of a queue as JSON, and reads them again."""

    def __init__(self, queue: str, item: type[I]) -> None:
        self._queue = queue
        self._of = item
        self._uncompared = (
            {field.name for field in fields(item) if not field.compare}
            if is_dataclass(item)
            else None
        )

    @cached_property
    def _item(self) -> pydantic.TypeAdapter[I]:
        return pydantic.TypeAdapter(self._of)

    @cached_property
    def _items(self) -> pydantic.TypeAdapter[list[I]]:
        return pydantic.TypeAdapter(list[self._of])  # type: ignore[name-defined]

    def insertion(
        self, key: str, item: I, idempotency_key: str | None = None, *, keep_result: bool = False
    ) -> Insertion:
        """Return an item on its way in.

        Raises:
            BadItemError: it cannot be inserted.
        """
        check_idempotency_key(idempotency_key)
        body = self.check(key, item)
        insertion = Insertion(plain_text(key), body, idempotency_key, keep_result)
        return (
            insertion if idempotency_key is None else replace(insertion, stated=self._values(item))
        )

    def batch(
        self, key: str, items: Sequence[I], idempotency_key: str | None, *, max_batch_size: int
    ) -> Insertion:
        """Return items on their way in together.

        Raises:
            BadItemError: one of them cannot be inserted, or they are too many.
        """
        refuse_other_namespace(f"the fork-join queue {self._queue}")
        key = check_key(key)
        check_idempotency_key(idempotency_key)
        if not 0 < len(items) <= MAX_BATCH_ITEMS:
            raise BadItemError(f"a batch must have 1 to {MAX_BATCH_ITEMS} items, got {len(items)}")
        pack_size = min(max_batch_size, MAX_PACK_ITEMS)
        if len(items) > MAX_BATCH_PACKS * pack_size:
            raise BadItemError(
                f"a batch must have at most {MAX_BATCH_PACKS * pack_size} items if a join takes "
                f"{pack_size} (max_batch_size), got {len(items)}"
            )
        starts = range(0, len(items), pack_size)
        parts = [items[start : start + pack_size] for start in starts]
        packs = tuple(
            (self._checked(key, part, start), len(part))
            for start, part in zip(starts, parts, strict=True)
        )
        body = ",".join(text for text, _ in packs)
        if len(body.encode()) > MAX_BATCH_BYTES:
            raise BadItemError(f"a batch must have at most {MAX_BATCH_BYTES} bytes as JSON")
        stated = "" if idempotency_key is None else self._values_of_all(items)
        return Insertion(key, body, idempotency_key, stated=stated, packs=packs)

    def _checked(self, key: str, items: Sequence[I], start: int) -> str:
        """Return items, of which `start` come first, as JSON without the brackets of their list."""
        with contextlib.suppress(BadItemError, *_mismatches()):
            for item in items:
                self._check_class(item)
            body = json_of(self._items, list(items))
            self._items.validate_json(body, strict=True)
            if len(body) <= MAX_ITEM_BYTES:
                return body[1:-1].decode()
        texts = []
        for position, item in enumerate(items, start + 1):  # One is wrong, or may be too large.
            try:
                texts.append(self.check(key, item))
            except BadItemError as error:
                raise BadItemError(f"item {position}: {error}") from error
        return ",".join(texts)

    def _values_of_all(self, items: Sequence[I]) -> str:
        exclude = {"__all__": self._uncompared} if self._uncompared else None
        text = self._items.dump_json(list(items), exclude=exclude, exclude_defaults=True)
        return text.decode()

    def check(self, key: str, item: I) -> str:
        """Return an item as JSON.

        Raises:
            BadItemError: it cannot be inserted.
            OtherNamespaceError: nor can any, in this context.
        """
        return self._written_and_read(key, item)[0]

    def copy(self, key: str, item: I) -> I:
        """Return an item as a join gets it: what its caller changes later is not in it.

        Raises:
            BadItemError: it cannot be inserted.
            OtherNamespaceError: nor can any, in this context.
        """
        return self._written_and_read(key, item)[1]

    def _written_and_read(self, key: str, item: I) -> tuple[str, I]:
        refuse_other_namespace(f"the fork-join queue {self._queue}")
        check_key(key)
        self._check_class(item)
        try:
            body = json_of(self._item, item)
            # As in its pack, where it is nested one level deeper than alone.
            [copy] = self._items.validate_json(b"[%b]" % body, strict=True)
        except _mismatches() as error:
            raise BadItemError(f"item does not match the type of {self._queue}: {error}") from error
        if len(body) > MAX_ITEM_BYTES:
            raise BadItemError(f"item must have at most {MAX_ITEM_BYTES} bytes, got {len(body)}")
        return body.decode(), copy

    def _check_class(self, item: I) -> None:
        """Check that an item is of no other class: it would lose that, and fields of its own.

        Raises:
            BadItemError: it is.
        """
        if is_dataclass(self._of) and type(item) is not self._of:
            raise BadItemError(
                f"item does not match the type of {self._queue}: it must be of the class "
                f"{self._of.__name__}, got {type(item).__name__}"
            )

    def read(self, items: str) -> list[I]:
        """Return the items of a pack.

        Raises:
            ValidationError: one of them is no item of this version of the queue.
        """
        return self._items.validate_json(items, strict=True)

    def _values(self, item: I) -> str:
        """Return the fields that a caller has set: the same after a field is added to the type.

        Fields with their default values are left out, and fields that are not compared.
        """
        text = self._item.dump_json(item, exclude=self._uncompared, exclude_defaults=True)
        return text.decode()


def _mismatches() -> tuple[type[ValueError], type[ValueError]]:
    """Return the errors of an item of another type; their modules are loaded on first use."""
    return pydantic_core.PydanticSerializationError, pydantic.ValidationError


def form_of(join: Callable[..., Any]) -> tuple[type[Any], Callable[..., Any]]:
    """Return the type of a join's items, and the join with all parameters that it can have.

    Raises:
        TypeError: the function is not a join.
    """
    name = check_plain(join, _FORM)
    parameters = list(inspect.signature(join).parameters)
    hints = hints_of(join, f"the queue; {_FORM}")
    # Of two the first is the batch: a join of the clients and the items would get it as clients.
    first = parameters[0] if len(parameters) == 2 else "_"
    lacks_batch = first != "_" and is_for_clients(first, hints.get(first))
    has_form = len(parameters) in (2, 3) and not lacks_batch
    items = get_args(hints.get(parameters[-1])) if has_form else ()
    if len(items) != 1:
        raise TypeError(f"{name} must accept a batch and items of a declared type; {_FORM}")
    item: type[Any] = items[0]
    return item, join if len(parameters) == 3 else without_clients(join)
