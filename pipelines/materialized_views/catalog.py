"""What a view is, and which tables of it there are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from models.materialized_views import ViewCatalog
from pipelines.materialized_views.rows import Contributions

# As in the pattern of Apply.table. It stands in keys beside a row's name.
_NAME = re.compile(r"[a-z0-9_]{1,100}")
# The definition of the empty table of a view that was let go. A view's own begin at 1.
RETIRED = 0


class View:
    """A view: which sources it has, and what each contributes to which rows.

    Change `definition` whenever `contributions`, `joins` or `ranked` would say something else than
    before; then `rebuild` (rebuild.py) makes the new table beside the old one.
    """

    name: ClassVar[str]  # Derived from the class's name if not given.
    definition: ClassVar[int] = 1
    source: ClassVar[Any]  # A kind of entity, or another view: then its rows are the sources.
    joins: ClassVar[Mapping[Any, Any]] = {}  # More sources: {kind: function}.
    # Measures that can be asked for their least, greatest and distinct values.
    ranked: ClassVar[Sequence[str]] = ()
    # Updates of one row a second, after a burst; None: as they come. A row in Datastore takes
    # about one write a second for long.
    row_rate: ClassVar[float | None] = 1.0
    row_burst: ClassVar[int] = 10
    # Updates of one row gather, and it is written once a batch: for rows that many sources share.
    fan_in: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.name = cls.__dict__.get("name") or _snake(cls.__name__)

    @staticmethod
    def contributions(source: Any) -> Contributions:
        """Return what a source contributes to which rows; pure, and the same each time."""
        raise NotImplementedError

    @classmethod
    def functions(cls) -> dict[str, Any]:
        """Return what to ask for contributions, by kind of source."""
        joined = {kind_of(kind): function for kind, function in cls.joins.items()}
        return {kind_of(cls.source): cls.contributions, **joined}


def check_views(views: Sequence[type[View]]) -> None:
    """Check that some views can be one group.

    Raises:
        TypeError: they cannot, and what to do.
    """
    names = [view.name for view in views]
    for view in views:
        if not _NAME.fullmatch(view.name):
            words = "up to 100 small letters, digits and _ will do"
            raise TypeError(f"{view.name!r} names tables: {words}")
        if names.count(view.name) > 1:
            raise TypeError(f"two views are called {view.name}: give one of them another `name`")
        if view.definition <= RETIRED:
            raise TypeError(f"{view.name} has definition {view.definition}: they begin at 1")
        if any(map(is_view, view.joins)):
            raise TypeError(f"{view.name} joins a view, which nothing could rebuild")
        if is_view(view.source) and view.source not in views:
            raise TypeError(f"{view.name} stands on {view.source.name}: put both into one group")


def is_view(source: Any) -> bool:
    """Return whether a source is a view, and not a kind of entity."""
    return isinstance(source, type) and issubclass(source, View)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def kind_of(source: Any) -> str:
    """Return the kind of a source: of an entity, or the name of a view."""
    if is_view(source):
        return str(source.name)
    return str(source._get_kind())


@dataclass(frozen=True)
class TableSet:
    """The tables of a view.

    `live` is read, `building` is being made, `dropping` are on their way out; `builds` is the
    number of the last one begun.
    """

    live: str
    building: str | None = None
    builds: int = 1
    dropping: Sequence[str] = ()

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> TableSet:
        """Return what is stored; what a later version may add is not this one's business."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in known})


@dataclass(frozen=True)
class Begun:
    """What a table was begun with: the kinds of its sources, and the measures that it ranks.

    `is_awaited`: it is about to be read, so a token is not met before this table holds it, too.
    """

    kinds: Sequence[str]
    ranked: Sequence[str]
    is_awaited: bool = False

    @classmethod
    def by(cls, view: type[View]) -> Begun:
        """Return what this code begins a table of a view with."""
        return cls(list(view.functions()), list(view.ranked))


@dataclass(frozen=True)
class Catalog:
    """Which tables the views of a group have, by the name of the view.

    `begun_with` says of each table what it was begun with, as stored.
    """

    views: Mapping[str, Mapping[str, Any]]
    begun_with: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, copy: ViewCatalog | None) -> Catalog:
        """Return what a copy of a group's catalog says; None: there is none yet."""
        return cls(copy.views, copy.begun_with or {}) if copy else cls({})

    def entry(self, view: type[View]) -> TableSet:
        """Return a view's tables; a view that nobody has built yet has an empty first one."""
        if view.name in self.views:
            return TableSet.of(self.views[view.name])
        return TableSet(table_name(view.name, view.definition, 1))

    def live(self, view: type[View]) -> str:
        """Return the table that is read."""
        return self.entry(view).live

    def building(self, view: type[View]) -> str | None:
        """Return the table that is being built, if one is."""
        return self.entry(view).building

    def dropping(self, view: str) -> Sequence[str]:
        """Return the tables of a view that are on their way out, known here or not."""
        stored = self.views.get(view)
        return TableSet.of(stored).dropping if stored else ()

    def is_retired(self, view: str) -> bool:
        """Return whether a view has been let go: its table is of no definition that there is."""
        return definition_of(self.views[view]["live"]) == RETIRED

    def tables(self, view: type[View]) -> list[str]:
        """Return the tables that take what this definition of the view contributes."""
        entry = self.entry(view)
        known = [table for table in (entry.live, entry.building) if table]
        return [table for table in known if is_fed(table, view)]

    def is_fed(self, view: type[View]) -> bool:
        """Return whether the table that is read takes what this definition contributes."""
        return is_fed(self.live(view), view)

    def begun(self, table: str) -> Begun | None:
        """Return what a table was begun with; None: an older version did not say."""
        stored = self.begun_with.get(table)
        if stored is None:
            return None
        return Begun(stored["kinds"], stored["ranked"], stored.get("is_awaited", False))

    def is_known(self, view: type[View], table: str) -> bool:
        """Return whether this code may fill, write and swap in a table of a view.

        It contributes what the table's definition says, of all kinds of sources that the table
        has, and ranks all that it ranks. Else another version of the code has to do it.
        """
        begun = self.begun(table) or Begun((), ())
        has_all = {*view.functions()}.issuperset(begun.kinds)
        return is_fed(table, view) and has_all and {*view.ranked}.issuperset(begun.ranked)

    def awaited(self, view: type[View]) -> set[str]:
        """Return the tables that hold what a token of theirs stands for, once it is met."""
        entry = self.entry(view)
        begun = self.begun(entry.building) if entry.building else None
        return {
            entry.live,
            *([entry.building] if entry.building and begun and begun.is_awaited else []),
        }

    def awaiting(self, view: type[View], table: str) -> Catalog:
        """Return a catalog in which tokens wait for a table that is about to be read."""
        begun = self.begun(table) or Begun.by(view)
        return self._knowing(table, replace(begun, is_awaited=True))

    def standing_on(self, view: type[View]) -> list[str]:
        """Return the views whose sources are this view's rows, also of those unknown here."""
        found = []
        for name, stored in self.views.items():
            begun = [self.begun(table) for table in (stored["live"], stored["building"]) if table]
            if any(each and view.name in each.kinds for each in begun):
                found.append(name)
        return found

    def is_gone(self, table: str) -> bool:
        """Return whether a table has been replaced; of views unknown here as well."""
        entry = self.views.get(view_name(table))
        return entry is not None and table not in (entry["live"], entry["building"])

    def changed(self, view: type[View], **how: Any) -> Catalog:
        """Return a catalog with changes to one view's tables."""
        return self._with(view.name, replace(self.entry(view), **how))

    def _with(self, name: str, entry: TableSet) -> Catalog:
        views = {**self.views, name: {**self.views.get(name, {}), **asdict(entry)}}
        begun_with = {
            table: begun
            for table, begun in self.begun_with.items()
            if view_name(table) != name or table in (entry.live, entry.building)
        }
        return Catalog(views, begun_with)

    def _knowing(self, table: str, begun: Begun | None) -> Catalog:
        """Return a catalog that says what a table was begun with."""
        known = {table: asdict(begun)} if begun else {}
        return Catalog(self.views, {**self.begun_with, **known})

    def listed(self, view: type[View]) -> Catalog:
        """Return a catalog in which a view is listed, a new one with the table it has by itself."""
        if view.name in self.views:
            return self
        return self.changed(view)._knowing(self.live(view), Begun.by(view))

    def without(self, view: str, table: str) -> Catalog:
        """Return a catalog in which a table of a view is not on its way out any more."""
        entry = TableSet.of(self.views[view])
        rest = [other for other in entry.dropping if other != table]
        return self._with(view, replace(entry, dropping=rest))

    def retiring(self, view: str) -> Catalog:
        """Return a catalog in which all tables of a view are on their way out.

        What is read is an empty one that nobody fills: the view may come back, and is rebuilt then.
        """
        entry = TableSet.of(self.views[view])
        out = [table for table in (entry.live, entry.building) if table]
        build = entry.builds + 1
        live, dropping = table_name(view, RETIRED, build), [*entry.dropping, *out]
        return self._with(view, TableSet(live, builds=build, dropping=dropping))

    def with_next(self, view: type[View]) -> Catalog:
        """Return a catalog in which a view's next table is being built, and no other one is."""
        return self._with_next(view.name, self.entry(view), view.definition, Begun.by(view))

    def with_next_alike(self, name: str) -> Catalog:
        """Do the same for a view that another version knows: it is built as what is read was."""
        entry = TableSet.of(self.views[name])
        return self._with_next(name, entry, definition_of(entry.live), self.begun(entry.live))

    def _with_next(
        self, name: str, entry: TableSet, definition: int, begun: Begun | None
    ) -> Catalog:
        build = entry.builds + 1
        table = table_name(name, definition, build)
        dropping = [*entry.dropping, *([entry.building] if entry.building else [])]
        entry = replace(entry, building=table, builds=build, dropping=dropping)
        return self._with(name, entry)._knowing(table, begun)


def table_name(view: str, definition: int, build: int) -> str:
    """Return the name of a build of a view.

    >>> table_name("students_by_grade", 1, 3)
    'students_by_grade.1.3'
    """
    return f"{view}.{definition}.{build}"


def view_name(table: str) -> str:
    """Return the view that a table belongs to."""
    return table.partition(".")[0]


def definition_of(table: str) -> int:
    """Return the definition that a table was built by."""
    return int(table.split(".")[1])


def is_fed(table: str, view: type[View]) -> bool:
    """Return whether a table takes what this definition of a view contributes."""
    return definition_of(table) == view.definition
