"""What a view is: its sources, and what each contributes to which rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rollforward.materialized_views.rows import Contributions

# As in the pattern of Apply.table. It stands in keys beside a row's name.
_NAME = re.compile(r"[a-z0-9_]{1,100}")
MIN_VERSION = 1


class View:
    """A view: which sources it has, and what each contributes to which rows.

    Add 1 to `version` whenever `contributions`, `joins` or `ranked` would say something else than
    before; then `rebuild` (rebuild.py) makes the new table beside the old one.
    """

    name: ClassVar[str]  # Derived from the class's name if not given.
    version: ClassVar[int] = MIN_VERSION
    source: ClassVar[Any]  # A kind of entity, or another view: then its rows are the sources.
    joins: ClassVar[Mapping[Any, Any]] = {}  # More sources: {kind: function}.
    # Measures that can be asked for their min, max and distinct values.
    ranked: ClassVar[Sequence[str]] = ()
    # Updates of one row per second, after a burst; None: as they come. A row in Datastore takes
    # about one write per second for long.
    row_rate: ClassVar[float | None] = 1.0
    row_burst: ClassVar[int] = 10
    # Updates of one row gather, and it is written once per batch: for rows that many sources share.
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
            allowed = "up to 100 small letters, digits and _ will do"
            raise TypeError(f"{view.name!r} names tables: {allowed}")
        if names.count(view.name) > 1:
            raise TypeError(f"two views are called {view.name}: give one of them another `name`")
        if view.version < MIN_VERSION:
            raise TypeError(f"{view.name} has version {view.version}: they begin at {MIN_VERSION}")
        if any(map(is_view, view.joins)):
            raise TypeError(f"{view.name} joins a view, which nothing could rebuild")
        if is_view(view.source) and view.source not in views:
            both = f"{view.name} is downstream of {view.source.name}"
            raise TypeError(f"{both}: put both into one group")


def is_view(source: Any) -> bool:
    """Return whether a source is a view, and not a kind of entity."""
    return isinstance(source, type) and issubclass(source, View)


def kind_of(source: Any) -> str:
    """Return the kind of a source: of an entity, or the name of a view."""
    if is_view(source):
        return str(source.name)
    return str(source._get_kind())


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
