"""Designs of quilts: patterns, and palettes of matching colours, chosen in OKLCH.

A colour is a function of the design and the square's place, so a task that paints a square again
paints the same colour.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MAX_SQUARES = 256


def hex_of(lightness: float, chroma: float, hue: float) -> str:
    """Return a colour of OKLCH as sRGB in hex, within its gamut. The matrices are B. Ottosson's.

    >>> hex_of(1.0, 0.0, 0.0), hex_of(0.628, 0.2577, 29.23)
    ('#ffffff', '#ff0000')
    """
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _encoded(min(1.0, max(0.0, x)))):02x}" for x in linear)


def _encoded(linear: float) -> float:
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055


@dataclass(frozen=True)
class Colour:
    """A colour and its name, for screen readers."""

    name: str
    hex: str


def _palette(*colours: tuple[str, float, float, float]) -> Sequence[Colour]:
    return tuple(Colour(name, hex_of(*oklch)) for name, *oklch in colours)


PALETTES: Mapping[str, Sequence[Colour]] = {
    "indigo": _palette(
        ("night", 0.34, 0.10, 272),
        ("indigo", 0.46, 0.14, 268),
        ("sky", 0.66, 0.12, 245),
        ("mist", 0.84, 0.05, 230),
        ("straw", 0.88, 0.09, 92),
        ("rust", 0.62, 0.15, 42),
    ),
    "meadow": _palette(
        ("moss", 0.43, 0.09, 145),
        ("fern", 0.58, 0.13, 142),
        ("lime", 0.80, 0.15, 122),
        ("cream", 0.93, 0.04, 98),
        ("poppy", 0.62, 0.19, 28),
        ("lilac", 0.70, 0.11, 310),
    ),
    "dusk": _palette(
        ("plum", 0.38, 0.12, 330),
        ("rose", 0.62, 0.17, 5),
        ("apricot", 0.78, 0.12, 60),
        ("sand", 0.90, 0.05, 80),
        ("slate", 0.52, 0.05, 255),
        ("teal", 0.60, 0.10, 200),
    ),
}
# A pattern: the index of `count` colours at row and column, of `edge` by `edge` squares.
Pattern = Callable[[int, int, int, int], int]


def _rings(row: int, column: int, edge: int, count: int) -> int:
    return min(row, column, edge - 1 - row, edge - 1 - column) % count


def _diamonds(row: int, column: int, edge: int, count: int) -> int:
    middle = (edge - 1) / 2
    return int(abs(row - middle) + abs(column - middle)) % count


def _waves(row: int, column: int, edge: int, count: int) -> int:
    return (column + round(1.5 * math.sin(row * math.tau / 8))) % count


def _patchwork(row: int, column: int, edge: int, count: int) -> int:
    return zlib.crc32(f"{row}.{column}".encode()) % count


PATTERNS: Mapping[str, Pattern] = {
    "diamonds": _diamonds,
    "rings": _rings,
    "waves": _waves,
    "patchwork": _patchwork,
}
# By the value in a form: squares along a side of a piece, and pieces.
SIZES: Mapping[str, tuple[int, int]] = {
    "8": (8, 1),
    "12": (12, 1),
    "16": (16, 1),
    "4x8": (8, 4),
}
PACES_MS: Mapping[str, int] = {"fast": 0, "watch": 400, "slow": 1500}


@dataclass(frozen=True)
class Design:
    """Design of a quilt: its size, palette, pattern and pace.

    Attributes:
        edge: Squares along a side of a piece.
        pace_ms: The least time that a square takes.

    Raises:
        ValueError: the size, the palette or the pattern is unknown.
    """

    edge: int
    pieces: int
    palette: str
    pattern: str
    pace_ms: int

    def __post_init__(self) -> None:
        if self.pieces not in (1, 4) or not 1 <= self.count <= MAX_SQUARES:
            raise ValueError(
                f"a quilt must have 1 or 4 pieces and 1 to {MAX_SQUARES} squares, "
                f"got {self.pieces} and {self.count}"
            )
        if self.palette not in PALETTES:
            raise ValueError(f"palette must be one of {', '.join(PALETTES)}, got {self.palette!r}")
        if self.pattern not in PATTERNS:
            raise ValueError(f"pattern must be one of {', '.join(PATTERNS)}, got {self.pattern!r}")

    @property
    def columns(self) -> int:
        """Squares of the whole quilt along a side."""
        return self.edge if self.pieces == 1 else 2 * self.edge

    @property
    def count(self) -> int:
        return self.edge * self.edge * self.pieces

    def place(self, number: int) -> tuple[int, int]:
        """Return row and column of a square, from 0."""
        return divmod(number, self.columns)

    def piece(self, number: int) -> int:
        """Return the number of a square's piece.

        >>> wide = Design(2, 4, "dusk", "rings", 0)
        >>> [wide.piece(number) for number in range(8)]
        [0, 0, 1, 1, 0, 0, 1, 1]
        """
        row, column = self.place(number)
        return row // self.edge * (self.columns // self.edge) + column // self.edge

    def numbers(self, piece: int) -> Sequence[int]:
        """Return the squares of a piece."""
        return [number for number in range(self.count) if self.piece(number) == piece]

    def colour(self, number: int) -> Colour:
        """Return the colour of a square."""
        palette = PALETTES[self.palette]
        row, column = self.place(number)
        place = PATTERNS[self.pattern](row, column, self.columns, len(palette))
        return palette[place]
