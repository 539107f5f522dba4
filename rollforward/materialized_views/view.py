"""Declaration of a view: its sources, and their contributions to rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from google.cloud import ndb

from rollforward.materialized_views.rows import Contributions

# As in the pattern of Apply.table. It stands in keys beside a row's name.
_NAME = re.compile(r"[a-z0-9_]{1,100}")
MIN_VERSION = 1


class View:
    """A view: its sources, and their contributions to rows.

    Add 1 to `version` whenever the results of `contributions`, `joins` or `ranked` change; then
    `rebuild` (maintenance/rebuild.py) fills a new table while readers see the old one.
    """

    name: ClassVar[str]  # Derived from the class's name if not given.
    version: ClassVar[int] = MIN_VERSION
    source: ClassVar[Any]  # A kind of entity, or another view: then its rows are the sources.
    joins: ClassVar[Mapping[Any, Any]] = {}  # More sources: {kind: function}.
    # Measures that can be asked for their min, max and distinct values.
    ranked: ClassVar[Sequence[str]] = ()
    # Writes of one row per second, after a burst; what comes faster gathers. None: as updates come.
    # A row in Datastore takes about one write per second for long.
    row_rate: ClassVar[float | None] = 1.0
    row_burst: ClassVar[int] = 10
    # Deprecated: all updates gather. With it readers also look at updates that wait as work items,
    # which an earlier version of the app sent.
    fan_in: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.name = cls.__dict__.get("name") or _snake(cls.__name__)

    @staticmethod
    def contributions(source: Any) -> Contributions:
        """Return a source's contributions by row. It must be pure and deterministic."""
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
    for view in views:
        _check_declared(view)
    names = [view.name for view in views]
    for view in views:
        if not _NAME.fullmatch(view.name):
            allowed = "must be 1 to 100 lowercase letters, digits and _"
            raise TypeError(f"view name {allowed}, got {view.name!r}")
        if names.count(view.name) > 1:
            raise TypeError(f"two views are called {view.name}: give one of them another `name`")
        if view.version < MIN_VERSION:
            raise TypeError(f"{view.name}.version must be at least 1, got {view.version}")
        if view.row_rate is not None and not view.row_rate > 0:
            raise TypeError(
                f"{view.name}.row_rate must be positive, or None for no limit, got {view.row_rate}"
            )
        if not view.row_burst >= 0:
            raise TypeError(f"{view.name}.row_burst must be at least 0, got {view.row_burst}")
        if isinstance(view.ranked, str):  # It holds each of its parts, and no measure is a letter.
            raise TypeError(
                f"{view.name}.ranked must be a tuple, as ('cents',), got {view.ranked!r:.100}"
            )
        if any(map(is_view, view.joins)):
            raise TypeError(f"{view.name} joins a view; only kinds of entities can be joined")
        if is_view(view.source) and view.source not in views:
            both = f"{view.name} is downstream of {view.source.name}"
            raise TypeError(f"{both}: put both into one group")
        _check_kinds(view, names)


def _check_kinds(view: type[View], names: Sequence[str]) -> None:
    """Check that the kinds of a view's sources differ, from each other and from names of views.

    The rows of a view go by its name as if that were their kind.
    """
    kinds = [kind_of(source) for source in (view.source, *view.joins)]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise TypeError(
                f"{view.name} has two functions for the kind {kind}, of which one would never be "
                "called: leave one out"
            )
    for kind in kinds[is_view(view.source) :]:
        if kind in names:
            raise TypeError(
                f"{view.name} follows the kind {kind}, and a view is called {kind}, too, so rows "
                "of that would be taken for sources: give the view another `name`"
            )


def _check_declared(view: type[View]) -> None:
    if not is_view(view):
        raise TypeError(f"a group takes classes that extend View, got {view!r:.100}")
    if getattr(view, "source", None) is None:
        raise TypeError(f"{view.name} must have a `source`: the kind of entity that it follows")
    if view.contributions is View.contributions:
        raise TypeError(
            f"{view.name} must have a `contributions`: a static method that returns the rows of a "
            "source, as {sale.shop: {'cents': sale.cents}}"
        )
    for source in (view.source, *view.joins):
        _check_kind(view, source)


def _check_kind(view: type[View], source: Any) -> None:
    """Check that a class has a kind of its own: a save knows a source by its kind alone."""
    if isinstance(source, type) and issubclass(source, ndb.PolyModel):
        root, *below = source._class_key()  # type: ignore[attr-defined]
        if below:
            raise TypeError(
                f"{view.name} cannot follow {source.__name__}, whose entities are of the kind "
                f"{root}, as those of other classes: follow {root}, and return {{}} for the others"
            )


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
