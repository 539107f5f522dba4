"""Totals that are broken on purpose: the page of each demo notices, and says so.

A run is looked at while its tasks are held back, and at its end. Then a row of it is deleted or
changed, so that one effect is missing, and changed again, so that there is one too many.

Where nothing counts the effects a second time, the page says "Complete", and then how many of those
asked for were not attempted. The bars of a school are compared with its students on request.
"""

from __future__ import annotations

import datetime
import html
import io
import itertools
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from google.cloud import ndb

from models.grades import Student, student_key
from models.numbers import numbers_run_key
from models.orders import HELD, OrderCharge, charge_key, order_key
from models.quilt import square_key
from models.sums import sum_key
from models.tenants import tally_key
from pipelines.blog import samples
from pipelines.grades.students import DEMO
from pipelines.invitations.send_progress import lineage
from pipelines.weblog import loads
from pipelines.weblog.sample import sample_log
from rollforward.continuations.entities import ContinuationRun, run_key
from rollforward.counters.entities import CounterShard
from rollforward.streams.entities import StreamSource
from tests.handlers.conftest import Browser, prepare
from tests.handlers.invitations.party import ID, PAGE, invite
from tests.infra.world import Services, World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM = "a" * 32
NOTE_BYTES = 8
POSTS = 4
LIST = "Ada,7,92\nBob,8,81\nEve,9,70"
SERIES = b"timestamp,value\n2015-02-26 21:42:53,10\n2015-02-26 21:47:53,20\n2015-02-26 22:02:53,7\n"


@pytest.fixture
def world(services: Services) -> World:
    """The app, whose lanes know the tasks of the demos."""
    world = World(services, knows_paths=True)
    prepare(world.app)
    return world


@dataclass(frozen=True)
class Page:
    """The page of a demo.

    Attributes:
        start: Sets a run going, and returns the path of its page.
        lose: Takes an effect out of the rows.
        double: Puts in two, so that there is one too many; None: keys leave no place for a second.
        whole, short, long: The verdicts of the end, of what is missing, and of what is too much.
        finish: Presses what the run waits for.
        act: Presses what the page needs to know its totals.
    """

    start: Callable[[Browser, World], str]
    lose: Callable[[], None]
    double: Callable[[], None] | None
    whole: str = "Adds up"
    short: str = "1 lost"
    long: str = "1 duplicated"
    finish: Callable[[Browser, World], None] = lambda browser, world: None
    act: Callable[[Browser, World], None] = lambda browser, world: None


def _form(path: str, **form: Any) -> Callable[[Browser, World], str]:
    def start(browser: Browser, world: World) -> str:
        response = browser.post(path, {"id": FORM, **form})
        assert response.status_code == 303, response.text
        return response.headers["Location"].partition("#")[0]

    return start


def _party(browser: Browser, world: World) -> str:
    browser.create_party(ID)
    invite(browser, world)
    browser.post(f"{PAGE}/send")
    return PAGE


def _zeitgeist(browser: Browser, world: World) -> str:
    return _form("/zeitgeist/playbacks", speed="100000", files=(io.BytesIO(SERIES), "tokyo.csv"))(
        browser, world
    )


def _sum(browser: Browser, world: World) -> str:
    browser.post("/sums", {"name": "visitors"})
    load = {"rate": "20", "writers": "2", "seconds": "1", "amounts": "one"}
    return _form("/sums/visitors/loads", **load)(browser, world)


def _count_clicks(by: int) -> Callable[[], None]:
    def change() -> None:
        shard = CounterShard.query().fetch(1)[0]
        shard.count += by
        shard.put()

    return change


def _count_items(by: int) -> Callable[[], None]:
    def change() -> None:
        row = sum_key("visitors").get()
        row.items, row.total = row.items + by, row.total + by
        row.put()

    return change


def _count_mails(by: int) -> Callable[[], None]:
    def change() -> None:
        [run_id] = lineage(_send_of(ID))
        run = run_key(run_id).get()
        run.totals = {**run.totals, "done": run.totals["done"] + by}
        run.put()

    return change


def _send_of(party: str) -> str:
    return str(ndb.Key("Party", party).get().sends[-1]["run_id"])


def _take_note(rush: str = FORM) -> None:
    tally = tally_key(rush, "C", 0).get()
    tally.times = b"\0" * NOTE_BYTES + tally.times[NOTE_BYTES:]
    tally.put()


def _note_twice(rush: str = FORM) -> None:
    tally = tally_key(rush, "C", 0).get()
    for slot in (0, 40):
        tally.note(slot, 1, 2)
    tally.put()


def _receive(by: int) -> Callable[[], None]:
    """Change how many records a source has sent: the other side stays as it is."""

    def change() -> None:
        row = next(row for row in StreamSource.query().fetch(20) if row.body.get("records"))
        row.body = {**row.body, "records": row.body["records"] + by}
        row.put()

    return change


def _charge_twice() -> None:
    charge = {"number": 0, "state": HELD, "asked": 1, "refunds": 0}
    OrderCharge(key=charge_key(FORM, "another key"), **charge).put()


def _visit_all(browser: Browser, world: World) -> None:
    browser.post(f"/orders/{FORM}/courier", {"visit": "all"})
    world.settle(patience_s=100)


def _verify(browser: Browser, world: World) -> None:
    browser.post("/grades/verify", {"id": f"{secrets.token_hex(16)}"})
    world.settle()


def _forget_student() -> None:
    """Delete a student behind the view's back: the bar has one too many of her grade."""
    Student.query().fetch(1)[0].key.delete()


def _enrol_twice() -> None:
    """Put in two students behind the view's back; the first one makes good for the missing one."""
    student = Student.query().fetch(1)[0]
    for number in range(2):
        Student(key=student_key(DEMO, str(number) * 32), **student.to_dict()).put()


def _measure_less() -> None:
    run = numbers_run_key(FORM).get()
    run.results = dict(list(run.results.items())[1:])
    run.started -= datetime.timedelta(hours=1)  # It has been given up since.
    run.put()


def _write_posts(by: int) -> Callable[[], None]:
    def change() -> None:
        run = next(run for run in ContinuationRun.query().fetch(9) if run.expected == POSTS)
        run.totals = {**run.totals, "done": run.totals["done"] + by}
        run.put()

    return change


ORDERS = {"orders": "6", "stock": "9", "patience": "60", "courier": "you", "pace": "fast"}
TENANTS = {
    **{"way": "lanes", "flood": "20", "behind": "2", "tasks": "3", "chosen": "B", "rule": "order"},
    **{"pace": "fast", "dead": "0"},
}
QUILT = {"size": "8", "palette": "meadow", "pattern": "rings", "pace": "fast"}
PAGES = {
    "counters": Page(
        _form("/counters/loads", rate="20", seconds="1", ways="sharded"),
        *(_count_clicks(-1), _count_clicks(2)),
    ),
    "sums": Page(_sum, _count_items(-1), _count_items(2)),
    "party": Page(_party, _count_mails(-1), _count_mails(2)),
    "quilt": Page(_form("/demo/quilt"), lambda: square_key(FORM, 5).delete(), None),
    "orders": Page(
        *(_form("/orders", **ORDERS), lambda: order_key(FORM, 3).delete(), _charge_twice),
        finish=_visit_all,
    ),
    "tenants": Page(_form("/tenants", **TENANTS), _take_note, _note_twice),
    "weblog": Page(_form("/streams/weblog/logs", sample="yes"), _receive(1), _receive(-2)),
    "zeitgeist": Page(_zeitgeist, _receive(1), _receive(-2)),
    "grades": Page(
        *(_form("/grades/lists", pasted=LIST), _forget_student, _enrol_twice),
        # A bar, and then both students as well, whose shares are in no bar.
        *("Complete", "drift 1", "drift 3"),
        act=_verify,
    ),
    "blog": Page(
        *(_form("/blog/samples"), _write_posts(-1), _write_posts(2)),
        *("", "1 not attempted"),  # Whole, they are posts like all others.
    ),
    "numbers": Page(_form("/numbers"), _measure_less, None, "Complete", "1 not attempted"),
}


def test_each_demo_of_the_menu_is_among_the_pages(browser: Browser) -> None:
    """A new one has its totals broken, too."""
    menu = browser.get("/").text.partition('class="menu"')[2].partition("</nav>")[0]
    names = {path.rpartition("/")[2] for path in re.findall(r'href="([^"]+)"', menu)}

    assert {"party" if name == "invitations" else name for name in names} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_notices_a_row_that_is_missing_doubled_or_held_back(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Open at first, whole in the end; then "1 lost" and "1 duplicated", in the same words."""
    lines = list(itertools.islice(sample_log(), 20))
    monkeypatch.setattr(loads, "sample_log", lambda: lines)
    monkeypatch.setattr(samples, "fill", partial(samples.fill, posts=POSTS, comments=3))
    demo = PAGES[name]

    page = demo.start(browser, world)
    assert verdict(browser, page) in ("Open", "")
    world.settle(patience_s=1, rounds=2000 if name == "numbers" else 200)
    demo.finish(browser, world)
    demo.act(browser, world)
    assert verdict(browser, page) == demo.whole

    with world.context():
        demo.lose()
    demo.act(browser, world)
    assert verdict(browser, page) == demo.short
    if demo.double is not None:
        with world.context():
            demo.double()
        demo.act(browser, world)
        assert demo.long in verdict(browser, page)


def verdict(browser: Browser, page: str) -> str:
    """Return the verdict below the equations of a page, "" where it has none."""
    _, _, books = browser.get(page).text.partition("data-books>")
    match = re.search(r'class="state[^>]*><span[^>]*>[^<]*</span>([^<]*)', books)
    return html.unescape(match[1]).strip() if match else ""
