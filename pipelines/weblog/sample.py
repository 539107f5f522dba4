"""A made-up access log, the same each time: a bakery's site in one morning, with a bad quarter.

A line is written when a response has ended, up to 55 s after its time. A few lines are broken, and
from 10:20 to 10:28 the server fails often.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from pipelines.weblog.lines import MONTHS

SEED = 2015
BEGIN = datetime.datetime(2015, 5, 17, 8, 0, tzinfo=datetime.UTC)
HOURS = 4
VISITORS = 220
SLOWEST_S = 55
OUTAGE = range(140, 148)  # Minutes since the beginning.
PAGES = (
    ("/", 30),
    ("/bread", 18),
    ("/cakes", 14),
    ("/cakes/cheesecake", 6),
    ("/opening-hours", 9),
    ("/about", 4),
    ("/" + quote("パン"), 7),
    ("/" + quote("ケーキ") + "/" + quote("抹茶"), 3),
    ("/style.css", 20),
    ("/logo.png", 16),
    ("/old-menu.html", 2),  # A page that was deleted.
)
GONE = "/old-menu.html"
AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/42.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 8_3 like Mac OS X) AppleWebKit/600.1.4 Mobile/12F70",
    "ExampleBot/2.1 (+https://bot.example/about)",
)
BROKEN = (b"\x16\x03\x01\x00", b'192.0.2.1 - - [yesterday] "GET / HTTP/1.1" 200 12', b"restarted")
BROKEN_EVERY = 500


@dataclass(frozen=True)
class _Hit:
    second: int  # Since the beginning.
    visitor: str
    path: str
    agent: str


def sample_log() -> Iterator[bytes]:
    """Yield the lines of the log."""
    rng = random.Random(SEED)
    hits = [hit for number in range(VISITORS) for hit in _visitor(rng, number)]
    ended = {hit: hit.second + rng.random() * SLOWEST_S for hit in hits}
    for number, hit in enumerate(sorted(hits, key=ended.__getitem__), start=1):
        yield _line(rng, hit)
        if number % BROKEN_EVERY == 0:
            yield BROKEN[number // BROKEN_EVERY % len(BROKEN)] + b"\n"


def _visitor(rng: random.Random, number: int) -> Iterator[_Hit]:
    """Yield what one visitor asks for: one to three visits, far apart or nearly one."""
    nets = ("192.0.2", "198.51.100", "203.0.113")
    address = f"{nets[number % 3]}.{number // 3 + 1}" if number % 7 else f"2001:db8::{number:x}"
    agent = rng.choices(AGENTS, (6, 5, 1))[0]
    paths, weights = zip(*PAGES, strict=True)
    second = rng.randrange(HOURS * 3600)
    for _ in range(rng.randint(1, 3)):
        for _ in range(rng.randint(1, 9)):
            if second < HOURS * 3600:
                yield _Hit(second, address, rng.choices(paths, weights)[0], agent)
            second += rng.randint(1, 240)
        second += rng.randint(20, 60) * 60


def _line(rng: random.Random, hit: _Hit) -> bytes:
    at = BEGIN + datetime.timedelta(seconds=hit.second)
    time = f"{at:%d}/{MONTHS[at.month - 1]}/{at:%Y:%H:%M:%S} +0000"
    status = 404 if hit.path == GONE else 200
    if hit.second // 60 in OUTAGE and rng.random() < 0.6:
        status = rng.choice((500, 502, 503))
    size = "-" if status == 404 else str(rng.randint(200, 60_000))
    request = f"GET {hit.path}{'?page=2' if rng.random() < 0.1 else ''} HTTP/1.1"
    return f'{hit.visitor} - - [{time}] "{request}" {status} {size} "-" "{hit.agent}"\n'.encode()
