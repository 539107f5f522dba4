"""The limits that Datastore documents, kept on every machine.

The emulators accept calls that the service refuses: an entity of 5 MB, a commit of 20,000 entities,
a transaction that was idle for an hour. Tests and the local app send their calls through
`DatastoreLimits`, which refuses these calls as the service does, and says how to fix them.

docs/reference/limits.md has the source and the date of each number, and which were ever seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from rollforward.runtime.channel.failed_call import FailedCall, error_of
from rollforward.runtime.channel.rpc import message_of


@dataclass(frozen=True)
class Limit:
    """A documented limit: its maximum, in a unit, and advice for calls above it."""

    name: str
    most: int
    unit: str
    advice: str

    def exceeded(self, subject: str, size: int) -> str:
        """Return the error text of a call that is above it."""
        return (
            f"{subject} must have at most {self.most:,} {self.unit}, got {size:,} "
            f"(limit {self.name}): {self.advice}"
        )


REQUEST = Limit("request", 10 * 2**20, "bytes", "send it in several requests")
COMMIT = Limit("commit", 500, "entities", "commit in several parts")
ENTITY = Limit("entity", 2**20 - 4, "bytes", "split it into several entities")
KEY = Limit("key", 6 * 2**10, "bytes", "store long texts in properties, and name it by their hash")
KEY_NAME = Limit("key-name", 1_500, "bytes", "name it by a hash of the text")
INDEXED = Limit("indexed-property", 1_500, "bytes", "declare it with indexed=False, or cut it")
UNINDEXED = Limit("property", 2**20 - 89, "bytes", "split it into several entities")
INDEX_ENTRIES = Limit("index-entries", 20_000, "indexed values", "index fewer values of it")
NESTING = Limit("nesting", 20, "levels of entities", "store the inner levels as JSON")
TRANSFORMS = Limit("transforms", 500, "transforms", "increment in several commits")
LOOKUP = Limit("lookup", 1_000, "keys", "look up in several calls, as datastore/lookup.py does")
AGE = Limit("transaction", 270, "s", "read and compute before the transaction begins")
IDLE = Limit("transaction-idle", 60, "s without a call", "compute before the transaction begins")

LIMITS = (
    *(REQUEST, COMMIT, ENTITY, KEY, KEY_NAME, INDEXED, UNINDEXED, INDEX_ENTRIES, NESTING),
    *(TRANSFORMS, LOOKUP, AGE, IDLE),
)


# A process reports a use to the console when it is this many times the last one.
REPORTED_FROM = 1.05


class Use(NamedTuple):
    """The largest use of a limit that a process has seen: its size, and its subject."""

    size: int
    what: str


class TooLargeError(FailedCall):
    """The error of a call that the service refuses, as the client library sees it."""

    def __init__(self, text: str) -> None:
        super().__init__(grpc.StatusCode.INVALID_ARGUMENT, text)


@dataclass
class _Open:
    """An open transaction: the times of its begin and of its last use."""

    began: float
    used: float


@dataclass
class DatastoreLimits(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Refuses the calls of a Datastore channel that are above a documented limit.

    Attributes:
        folder: The console of `make run` reads there how near this process came; "": none.
        uses: The largest use of each limit so far, by its name.
    """

    now: Callable[[], float] = time.monotonic
    folder: str = ""
    uses: dict[str, Use] = field(default_factory=dict)
    _reported: dict[str, int] = field(default_factory=dict)
    _open: dict[bytes, _Open] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """Make a call, or refuse it.

        Raises:
            TooLargeError: it is above a limit.
        """
        rpc = details.method.rpartition("/")[2]
        message = message_of(request)
        self._check("a request", REQUEST, message.ByteSize())
        if rpc == "Commit":
            self._check_commit(message)
        elif rpc == "Lookup":
            self._check(f"a lookup of {_kind(message.keys)}", LOOKUP, len(message.keys))
        self._check_age(rpc, message)
        call = continuation(details, request)
        if rpc == "BeginTransaction":
            call.add_done_callback(self._begin)
        return call

    def _check(self, subject: str, limit: Limit, size: int) -> None:
        if size > limit.most:
            raise TooLargeError(limit.exceeded(subject, size))
        used = self.uses.get(limit.name)
        if used is None or size > used.size:
            self.uses[limit.name] = Use(size, subject)
            if self.folder and size > REPORTED_FROM * self._reported.get(limit.name, -1):
                self._reported[limit.name] = size
                report(self.folder, self.uses)

    def _check_commit(self, message: Any) -> None:
        self._check("a commit", COMMIT, len(message.mutations))
        for mutation in message.mutations:
            operation = mutation.WhichOneof("operation")
            if operation == "delete":
                self._check_key(mutation.delete)
            elif operation is not None:
                self._check_entity(getattr(mutation, operation))
            self._check("a mutation", TRANSFORMS, len(mutation.property_transforms))

    def _check_entity(self, entity: Any) -> None:
        self._check_key(entity.key)
        kind = entity.key.path[-1].kind if entity.key.path else "an entity"
        self._check(kind, ENTITY, entity.ByteSize())
        indexed = 0
        for name, value in entity.properties.items():
            indexed += self._check_value(f"{kind}.{name}", value)
        self._check(kind, INDEX_ENTRIES, indexed)

    def _check_value(self, name: str, value: Any, level: int = 1) -> int:
        """Check one property; return how many indexed values it has."""
        indexed = 0
        for part in _parts(value):
            kind = part.WhichOneof("value_type")
            if kind == "entity_value":
                self._check(name, NESTING, level)
                for key, inner in part.entity_value.properties.items():
                    indexed += self._check_value(f"{name}.{key}", inner, level + 1)
            elif kind in ("string_value", "blob_value"):
                content = getattr(part, kind)
                size = len(content.encode() if isinstance(content, str) else content)
                self._check(name, UNINDEXED if part.exclude_from_indexes else INDEXED, size)
            indexed += not part.exclude_from_indexes
        return indexed

    def _check_key(self, key: Any) -> None:
        subject = f"a key of {_kind([key])}"
        self._check(subject, KEY, key.ByteSize())
        for element in key.path:
            self._check(subject, KEY_NAME, len(element.name.encode()))

    # Transactions

    def _begin(self, call: Any) -> None:
        if error_of(call) is None:
            at_s = self.now()
            with self._lock:
                self._open[call.result().transaction] = _Open(at_s, at_s)

    def _check_age(self, rpc: str, message: Any) -> None:
        transaction = _transaction(rpc, message)
        if not transaction:
            return
        with self._lock:
            if rpc in ("Commit", "Rollback"):
                opened = self._open.pop(transaction, None)
            else:
                opened = self._open.get(transaction)
        if opened is None or rpc == "Rollback":
            return
        at_s = self.now()
        for limit, since_s in ((AGE, opened.began), (IDLE, opened.used)):
            if at_s - since_s > limit.most:
                text = limit.exceeded("a transaction", int(at_s - since_s))
                raise TooLargeError(
                    f"The referenced transaction has expired or is no longer valid: {text}"
                )
            self._check("a transaction", limit, int(at_s - since_s))
        opened.used = at_s


def report(folder: str, uses: Mapping[str, Use]) -> None:
    """Write how near this process came to each limit into one file, atomically."""
    rows = [
        {**asdict(limit), "size": uses[limit.name].size, "what": uses[limit.name].what}
        for limit in LIMITS
        if limit.name in uses
    ]
    path = Path(folder) / f"{os.getpid()}-{threading.get_ident()}.json"
    with contextlib.suppress(OSError):  # The console is gone.
        path.write_text(json.dumps(rows))
        path.replace(Path(folder) / f"{os.getpid()}.limits")


def _transaction(rpc: str, message: Any) -> bytes:
    """Return the transaction that a call belongs to, b"" for none."""
    match rpc:
        case "Lookup" | "RunQuery" | "RunAggregationQuery":
            return bytes(message.read_options.transaction)
        case "Commit" | "Rollback":
            return bytes(message.transaction)
        case _:
            return b""


def _parts(value: Any) -> Iterator[Any]:
    """Yield the values of a list, or the one that it is."""
    if value.WhichOneof("value_type") == "array_value":
        yield from value.array_value.values
    else:
        yield value


def _kind(keys: Any) -> str:
    """Return the kind of the first key."""
    return keys[0].path[-1].kind if keys and keys[0].path else "nothing"
