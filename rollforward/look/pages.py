"""Templates of a console: their environment, the files behind their pages, and a page's ETag."""

import hashlib
import re
import string
from collections.abc import Sequence
from pathlib import Path

import jinja2

from rollforward.look import editor, words

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_TIME = re.compile(rb"(<time [^>]*>)[^<]*</time>")
# New in each answer: a form that stands on a page already is as good.
_SEAL = re.compile(rb'(name="(?:csrf_token|key)" value=")[^"]*')


def environment(templates: Path) -> jinja2.Environment:
    """Return the environment of a folder's templates, which extend the shared frame."""
    shared = jinja2.Environment(
        loader=jinja2.FileSystemLoader([templates, _HERE / "templates"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared.filters.update(
        when=words.when,
        stamp=words.stamp,
        duration=words.duration,
        size=words.size,
        span=words.span,
        clock=words.clock,
        clock_text=words.clock_text,
        late=words.late,
        with_links=editor.with_links,
        counted=words.pluralize,
        number=words.number,
    )
    shared.globals.update(
        STATES=words.STATES,
        SERVICE_STATES=words.SERVICE_STATES,
        RUN_STATES=words.RUN_STATES,
        OUTCOMES=words.OUTCOMES,
        sparkline=words.sparkline,
        header_value=words.header_value,
        letters_of=letters_of,
    )
    return shared


def letters_of(menu: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the letter that opens each page of a menu after a "g": none opens two.

    >>> letters_of([("/tasks", "Tasks"), ("/traces", "Traces"), ("/limits", "Limits")])
    {'/tasks': 't', '/traces': 'r', '/limits': 'l'}
    """
    letters: dict[str, str] = {}
    for path, title in menu:
        candidates = [*title.lower().replace(" ", ""), *string.ascii_lowercase]
        letters[path] = next(letter for letter in candidates if letter not in letters.values())
    return letters


def etag_of(page: bytes) -> str:
    """Return the ETag of a page: the same as long as only its relative times have changed.

    The script updates those itself, so a page without news costs a 304. Nor do the tokens of its
    forms count.

    >>> etag_of(b'<time x="1">1 s ago</time>') == etag_of(b'<time x="1">2 s ago</time>')
    True
    """
    digest = hashlib.sha256(_SEAL.sub(rb"\1", _TIME.sub(rb"\1", page))).hexdigest()
    return f'W/"{digest[:32]}"'
