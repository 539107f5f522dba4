"""Stored kinds, their entities, and one entity, read without the app.

Keys travel in addresses as the JSON list of their path: ["Party", "a1", "Guest", 7].
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from google.api_core.exceptions import InvalidArgument
from google.cloud import datastore

from rollforward.local.console.reading.datastore_reader import (
    CALL_OPTIONS,
    SCAN_OPTIONS,
    DatastoreReader,
)
from rollforward.local.console.reading.declared_kinds import declared_kinds
from rollforward.look.words import Body, body

PAGE_ENTITIES = 25
# One reply of the Datastore emulator holds 300 keys, and it sorts the whole kind for each: to count
# further took 1.3 s for a kind of 6,000 entities. So a page counts when it is asked to.
MAX_COUNTED = 299
COUNTED_AT_ONCE = 4
MAX_KINDS = 200
MAX_PATH_CHARS = 6000
MAX_CURSOR_CHARS = 4000
_SHOWN_PROPERTIES = 4
_SHOWN_CHARS = 60


class BadKeyError(ValueError):
    """This is no key of an entity."""


class BadValueError(ValueError):
    """Datastore cannot hold the value, so no query can ask for it."""


@dataclass(frozen=True)
class Kind:
    """A kind and its number of entities, as far as they were counted; None if they were not.

    Attributes:
        is_declared: Whether the sources declare it, and nothing says that it has entities.
    """

    name: str
    count: int | None = None
    is_declared: bool = False

    @property
    def is_cut(self) -> bool:
        """True if there are more."""
        return self.count is not None and self.count > MAX_COUNTED


@dataclass(frozen=True)
class Property:
    """One property of an entity.

    Attributes:
        text: Its value in one line.
        body: Bytes or a long text, as people read them.
        link: Where a key leads.
    """

    name: str
    type: str
    text: str
    is_indexed: bool
    body: Body | None = None
    link: str = ""


@dataclass(frozen=True)
class EntityView:
    """One entity as it is shown."""

    key: str
    url: str
    kind: str
    parent_url: str
    parent_key: str
    properties: list[Property]
    json: str

    @property
    def summary(self) -> str:
        """Its first properties in one line."""
        shown = [p for p in self.properties if p.text][:_SHOWN_PROPERTIES]
        return " · ".join(f"{p.name} {_truncate(p.text)}" for p in shown)


@dataclass(frozen=True)
class Page:
    """Entities of a kind, by key, and where the next page begins ("": nowhere)."""

    rows: list[EntityView]
    next_cursor: str


@dataclass(frozen=True)
class Query:
    """A query for entities of a kind: all, or those whose property has a value."""

    kind: str
    namespace: str = ""
    property: str = ""
    value: str = ""
    cursor: str = ""


class Entities:
    """Reads entities. Each method raises a GoogleAPIError if Datastore does not answer."""

    def __init__(self, reader: DatastoreReader, folders: Sequence[Path] = ()) -> None:
        """Read through this connection; folders hold sources that declare kinds."""
        self._reader = reader
        self._folders = folders
        # Emulators that refuse to list kinds and namespaces: they are asked once.
        self._refusing: set[str] = set()

    def namespaces(self, address: str) -> list[str]:
        """Return the namespaces that hold something; "" is the default one.

        The Firestore emulator refuses to list them: then only the default one is known.
        """
        names = self._listed(address, "__namespace__")
        return sorted({*(names or ()), ""})

    def kinds(self, address: str, namespace: str = "", *, counts: bool = False) -> list[Kind]:
        """Return the kinds of a namespace by one query; with their counts by one more for each.

        If the emulator cannot list kinds, the declared kinds are returned without a
        query, and those with entities if they are counted: it sorts a whole kind for its first key.
        """
        stored = self._listed(address, "__kind__", namespace)
        names = declared_kinds(self._folders) if stored is None else stored
        shown = sorted(name for name in names if not name.startswith("__"))
        if not counts:
            return [Kind(name, is_declared=stored is None) for name in shown]
        client = self._reader.client(address)

        def count_of(name: str) -> int:
            counting = client.query(kind=name, namespace=namespace or None)
            counting.keys_only()
            return sum(1 for _ in counting.fetch(limit=MAX_COUNTED + 1, **SCAN_OPTIONS))

        with ThreadPoolExecutor(COUNTED_AT_ONCE, "count") as pool:
            pairs = [*zip(shown, pool.map(count_of, shown), strict=True)]
        return [Kind(name, count) for name, count in pairs if stored is not None or count]

    def _listed(self, address: str, kind: str, namespace: str = "") -> list[str] | None:
        """Return the names of kinds or namespaces; None: the emulator refuses to list them.

        Raises:
            InvalidArgument: no namespace can have this name.
        """
        if address in self._refusing:
            return None
        query = self._reader.client(address).query(kind=kind, namespace=namespace or None)
        query.keys_only()
        try:
            return [row.key.name or "" for row in query.fetch(limit=MAX_KINDS, **CALL_OPTIONS)]
        except InvalidArgument:
            if namespace and self._listed(address, kind) is not None:
                raise  # It is the namespace that it refuses.
            self._refusing.add(address)
            return None

    def page(self, address: str, asked: Query) -> Page:
        """Return a page of entities, by key: a query of keys, and one lookup.

        The Firestore emulator sorts a whole kind for each query, and whole entities take it twice
        to three times as long as their keys.

        Raises:
            BadKeyError: the cursor is none.
            BadValueError: no property can have this value.
        """
        client = self._reader.client(address)
        query = client.query(kind=asked.kind, namespace=asked.namespace or None)
        if asked.property:
            value = _searched_value(asked)
            query.add_filter(filter=datastore.query.PropertyFilter(asked.property, "=", value))
        query.keys_only()
        query.order = ["__key__"]
        rows = query.fetch(limit=PAGE_ENTITIES, start_cursor=_cursor(asked.cursor), **SCAN_OPTIONS)
        keys = [row.key for row in next(rows.pages, [])]
        entities = {each.key: each for each in client.get_multi(keys, **CALL_OPTIONS)}
        shown = [view_of(entities[key]) for key in keys if key in entities]
        token = rows.next_page_token if len(keys) == PAGE_ENTITIES else None
        return Page(shown, token.decode() if isinstance(token, bytes) else token or "")

    def one(self, address: str, path: list[str | int], namespace: str = "") -> EntityView | None:
        """Return one entity, None if there is none.

        Raises:
            BadKeyError: the path is no key.
        """
        client = self._reader.client(address)
        try:
            key = client.key(*path, namespace=namespace or None)
        except (ValueError, TypeError) as error:
            raise BadKeyError(str(error)) from None
        entity = client.get(key, **CALL_OPTIONS)
        return None if entity is None else view_of(entity)


def path_of(text: str) -> list[str | int]:
    """Return the path of a key out of an address.

    >>> path_of('["Party", "a1", "Guest", 7]')
    ['Party', 'a1', 'Guest', 7]

    Raises:
        BadKeyError: it is none.
    """
    try:
        path = json.loads(text[:MAX_PATH_CHARS])
    except (ValueError, RecursionError):
        path = None
    is_path = isinstance(path, list) and path and len(path) % 2 == 0
    if not is_path or not all(_is_part(i, part) for i, part in enumerate(path)):
        raise BadKeyError("A key must be a list of kinds and ids or names, in valid Unicode.")
    return [*path]


def _searched_value(asked: Query) -> Any:
    if asked.property == "__key__":
        raise BadValueError("To find an entity by key, use the field for its id or name.")
    value = value_of(asked.value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise BadValueError("An integer must fit in 64 bits. Put digits in quotes for a string.")
    if isinstance(value, str) and not _is_unicode(value):
        raise BadValueError("A string must be valid Unicode: this one has an unpaired surrogate.")
    return value


def _is_unicode(text: str) -> bool:
    """Return whether a text can be UTF-8; JSON may escape one that cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def value_of(text: str) -> Any:
    """Return a value as it was typed: JSON if it is a number, true, false, null or in quotes.

    >>> [value_of(text) for text in ("7", "true", '"7"', "seven", "null")]
    [7, True, '7', 'seven', None]
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, list | dict) else value


def url_of(key: Any) -> str:
    """Return where the console shows the entity of a key."""
    query = {"ns": key.namespace or "", "path": json.dumps(key.flat_path, ensure_ascii=False)}
    return "/data/entity?" + urlencode({name: value for name, value in query.items() if value})


def view_of(entity: Any) -> EntityView:
    """Return an entity as it is shown."""
    parent = entity.key.parent
    properties = [_property(entity, name) for name in sorted(entity)]
    plain = {name: _plain(value) for name, value in sorted(entity.items())}
    return EntityView(
        key=key_text(entity.key),
        url=url_of(entity.key),
        kind=entity.key.kind,
        parent_url=url_of(parent) if parent is not None else "",
        parent_key=key_text(parent) if parent is not None else "",
        properties=properties,
        json=json.dumps(plain, ensure_ascii=False, indent=2),
    )


def key_text(key: Any) -> str:
    """Return the ids and names of a key's path; of ancestors with their kinds."""
    *ancestors, own_pair = [*_pairs(key.flat_path)]
    return "".join(f"{kind} {name} / " for kind, name in ancestors) + str(own_pair[1])


def _pairs(path: Any) -> Iterator[tuple[str, str | int]]:
    return zip(path[::2], path[1::2], strict=True)


def _property(entity: Any, name: str) -> Property:
    value = entity[name]
    is_indexed = name not in entity.exclude_from_indexes
    if isinstance(value, bytes):
        readable = body(value)
        return Property(name, "bytes", _line(readable.text), is_indexed, readable)
    if isinstance(value, str):
        readable = body(value.encode(errors="replace"))
        is_long = len(value) > _SHOWN_CHARS or "\n" in value
        return Property(name, "text", _line(value), is_indexed, readable if is_long else None)
    if isinstance(value, datastore.Key):
        return Property(name, "key", key_text(value), is_indexed, link=url_of(value))
    text = json.dumps(_plain(value), ensure_ascii=False)
    readable_json = body(text.encode()) if len(text) > _SHOWN_CHARS else None
    return Property(name, _type_of(value), text.strip('"'), is_indexed, readable_json)


def _type_of(value: Any) -> str:
    names = {bool: "yes or no", int: "integer", float: "number", type(None): "null", list: "list"}
    if isinstance(value, datetime):
        return "time"
    return names.get(type(value), "entity" if isinstance(value, Mapping) else type(value).__name__)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, datastore.Key):
        return {"key": [*value.flat_path]}
    if isinstance(value, bytes):
        readable = body(value)
        if readable.form == "JSON" and not readable.cut:
            return json.loads(readable.text)
        return readable.text if readable.form == "text" else _base64(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_plain = value is None or isinstance(value, str | int | float | bool)
    return value if is_plain else str(value)


def _base64(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def _cursor(text: str) -> bytes | None:
    if not text:
        return None
    try:
        base64.urlsafe_b64decode(text[:MAX_CURSOR_CHARS])
    except ValueError:
        raise BadKeyError("This is not a valid cursor.") from None
    return text.encode()


def _is_part(index: int, part: Any) -> bool:
    if index % 2 == 0:
        return _is_name(part)
    is_id = isinstance(part, int) and not isinstance(part, bool) and 0 < part < 2**63
    return is_id or _is_name(part)


def _is_name(part: Any) -> bool:
    return isinstance(part, str) and bool(part) and _is_unicode(part)


def _line(text: str) -> str:
    return " ".join(text[:1000].split())


def _truncate(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
