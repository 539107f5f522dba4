"""Attention: the list at the top of a console's first page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """One thing that an operator should look at, and the page that has it."""

    icon: str
    colour: str
    text: str
    link: str
