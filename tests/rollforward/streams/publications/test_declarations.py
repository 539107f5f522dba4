"""Declarations of publications and subscriptions: types are checked, invalid ones are refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from rollforward.streams import Pipeline, PushSource
from rollforward.streams.publications import Publication, Subscription
from tests.rollforward.streams.publications.publishing import Couple, Pass


@dataclass(frozen=True)
class Hit:
    k: str
    id: str = ""


@dataclass(frozen=True)
class Narrow:
    k: str


@dataclass(frozen=True)
class Wrong:
    k: int


@dataclass(frozen=True)
class More:
    k: str
    path: str


@dataclass(frozen=True)
class Tree:
    title: str
    below: list[Tree]


@dataclass(frozen=True)
class OtherTree:
    title: int
    below: list[OtherTree]


def test_a_subscription_checks_the_types_of_the_publication() -> None:
    publication = Publication("hits", type=Hit)
    Pipeline("weblog", Pass, sinks=[publication])
    for type_ in (None, Hit, Narrow):
        Subscription(publication, type=type_)
    with pytest.raises(TypeError, match="'k' has another type"):
        Subscription(publication, type=Wrong)
    with pytest.raises(TypeError, match="may lack 'path'"):
        Subscription(publication, type=More)
    for written, read in ((list[int], list[str]), (dict[str, int], int), (Tree, OtherTree)):
        _declared(Publication("hits", type=written)).check_readable(written)
        with pytest.raises(TypeError, match="another type"):
            _declared(Publication("hits", type=written)).check_readable(read)
    with pytest.raises(TypeError, match="no `type`"):
        _declared(Publication("hits")).check_readable(Hit)


def test_a_value_of_another_type_is_a_dead_letter_of_the_publisher() -> None:
    couple = Couple(Publication("hits", type=Wrong), start="earliest")
    couple.publish(1_000)
    couple.read()
    assert couple.publisher.interval("hits-log").dead == 1
    assert (couple.seen(), couple.log()) == ([], [])


def test_invalid_declarations_are_refused() -> None:
    with pytest.raises(TypeError, match="belongs to no pipeline"):
        Subscription(Publication("hits"))
    with pytest.raises(TypeError, match="require a `key`"):
        Publication("hits", partitions=2)
    with pytest.raises(TypeError, match="must be 1 to"):
        Publication("hits", partitions=0)
    with pytest.raises(TypeError, match="must not be negative"):
        Publication("hits", keep=timedelta(seconds=-1))
    with pytest.raises(TypeError, match="must be names, got 'ab'"):
        PushSource("hits", processes="ab")
    with pytest.raises(TypeError, match="must have a time zone"):
        Subscription(_declared(Publication("hits")), start=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(TypeError, match="must be latest, earliest or a time"):
        Subscription(_declared(Publication("hits")), start="last")  # type: ignore[arg-type]


def _declared(publication: Publication) -> Publication:
    Pipeline("weblog", Pass, sinks=[publication])
    return publication
