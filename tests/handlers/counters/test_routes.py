"""The page of counters: forms act once, refuse bad input, and the counts add up."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from models.counters import switch_key
from pipelines.counters import counters
from rollforward.runtime import NoCache
from rollforward.runtime.channel.write_limit import EntityWriteLimit, Tickets
from tests.handlers.conftest import Browser
from tests.handlers.hostile import XSS, tags
from tests.handlers.looking import look_only
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM, OTHER = "a" * 32, "b" * 32
LOAD = {"rate": "20", "seconds": "1", "ways": "all"}


def total(world: World) -> int:
    with world.context():
        return counters.SHARDED.total(world.clients, counters.KEY).value


def limited(world: World) -> EntityWriteLimit:
    """Give the app the simulation that it has on a laptop."""
    limit = EntityWriteLimit(Tickets(NoCache()))
    services = {**world.clients.services, EntityWriteLimit: limit}
    object.__setattr__(world.clients, "services", services)
    return limit


TABS = [f"/counters?tab={tab}" for tab in ("ways", "how", "code", "tables")]


@pytest.mark.parametrize("path", ["/counters", "/counters/live", *TABS])
def test_what_is_read_changes_nothing(
    browser: Browser, snapshot: Callable[[], Any], path: str
) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, path)


def test_the_front_page_and_the_menu_lead_here(browser: Browser) -> None:
    """A card and an entry."""
    assert browser.get("/").text.count('href="/counters"') == 2


def test_what_is_empty_says_what_to_do(browser: Browser) -> None:
    """No click yet: nothing is proved, and nothing says so."""
    page = browser.get("/counters").text

    assert "Press “Start clicking”" in page
    assert "exactly" not in page
    assert "data-books" not in page


def test_a_click_counts_once_for_its_form(browser: Browser, world: World) -> None:
    """E1: sent twice, it says so; a negative one takes away."""
    browser.post("/counters/clicks", {"id": FORM, "amount": "5"})
    repeated = browser.post("/counters/clicks", {"id": FORM, "amount": "5"}, follow_redirects=True)
    browser.post("/counters/clicks", {"id": OTHER, "amount": "-7"})

    assert "This form was sent before" in repeated.text
    assert total(world) == -2
    page = browser.get("/counters").text
    assert page.count("exactly") == 1
    assert page.count("nothing counted yet") == 3


@pytest.mark.parametrize("amount", ["", "x", "1.5", "1000001", "９", "1e9", "9" * 200, *XSS[:3]])
def test_a_bad_amount_changes_nothing(
    browser: Browser, snapshot: Callable[[], Any], amount: str
) -> None:
    """S15, S16: a clear 400, and the input is shown as text."""
    stored = snapshot()
    answer = browser.post("/counters/clicks", {"id": FORM, "amount": amount})

    assert answer.status_code == 400
    assert "A whole number from" in answer.text
    assert "<img" not in answer.text
    assert tags(answer.text)
    assert snapshot() == stored


def test_a_load_is_counted_in_all_four_ways(browser: Browser, world: World) -> None:
    """E1: the page says of each that it adds up."""
    answer = browser.post("/counters/loads", {"id": FORM, **LOAD})
    second = browser.post("/counters/loads", {"id": OTHER, **LOAD})
    for _ in range(2):
        world.settle()
        with world.context():
            counters.IN_MEMORY.flush(world.clients)
    world.settle()
    page = browser.get("/counters").text

    assert (answer.status_code, second.status_code) == (303, 409)
    assert total(world) == 20
    assert page.count("exactly") == 4
    assert "The load has ended" in page
    assert re.search(r"20 clicks a second for 1 s", page)
    assert "80 clicks in 4 ways, 0 lost, 0 duplicated" in page
    assert "all accepted after" in page


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": "0"},
        {"rate": "201"},
        {"seconds": "31"},
        {"seconds": "x"},
        {"ways": "by-heart"},
        {"rate": "9" * 200},
    ],
)
def test_a_bad_load_changes_nothing(
    browser: Browser, snapshot: Callable[[], Any], wrong: dict[str, str]
) -> None:
    """S15: the sliders' bounds hold for every sender of the form."""
    stored = snapshot()
    answer = browser.post("/counters/loads", {"id": FORM, **LOAD, **wrong})

    assert answer.status_code == 400
    assert snapshot() == stored


def test_shards_are_set_by_hand_and_adapt_again(browser: Browser, world: World) -> None:
    """E2: the page shows each shard, including draining ones."""
    browser.post("/counters/clicks", {"id": FORM, "amount": "5"})
    grown = browser.post("/counters/shards", {"how": "by-hand", "shards": "20"})
    page = browser.get("/counters").text
    browser.post("/counters/shards", {"how": "by-hand", "shards": "3"})
    draining = browser.get("/counters").text
    world.settle()
    browser.post("/counters/shards", {"how": "adaptive", "shards": "3"})
    adaptive = browser.get("/counters").text

    assert grown.status_code == 303
    assert page.count('<g class="shard') == 20
    assert "set by hand" in page
    assert draining.count("is-draining") == 17
    assert adaptive.count('<g class="shard') == 3
    assert "after conflicts" in adaptive
    assert total(world) == 5


@pytest.mark.parametrize("shards", ["0", "65", "x", "", "-1", "1e1"])
def test_a_number_of_shards_that_cannot_be_changes_nothing(
    browser: Browser, snapshot: Callable[[], Any], shards: str
) -> None:
    """S15: a clear 400."""
    stored = snapshot()
    answer = browser.post("/counters/shards", {"how": "by-hand", "shards": shards})

    assert answer.status_code == 400
    assert snapshot() == stored


def test_the_limit_is_simulated_on_a_laptop_until_it_is_switched_off(
    browser: Browser, world: World
) -> None:
    """On at first, and labelled; each process follows the switch."""
    limit = limited(world)
    first = browser.get("/counters").text
    was_on = limit.is_on
    browser.post("/counters/write-limit/off")
    off = browser.get("/counters").text
    is_on = limit.is_on
    browser.post("/counters/write-limit/on")
    browser.get("/counters/live")

    assert (was_on, is_on, limit.is_on) == (True, False, True)
    assert 'aria-checked="true" title="Limits each row' in first
    assert 'aria-checked="false" title="Limits each row' in off


def test_a_deployed_app_has_no_such_switch(browser: Browser, world: World) -> None:
    """There the limit is real."""
    assert "Simulate production" not in browser.get("/counters").text
    assert browser.post("/counters/write-limit/off").status_code == 404
    with world.context():
        assert switch_key().get() is None


@pytest.mark.parametrize(
    ("path", "field", "form"),
    [
        ("/counters/clicks", "amount", {"amount": "x"}),
        ("/counters/loads", "ways", LOAD | {"ways": "odd"}),
        ("/counters/loads", "rate", LOAD | {"rate": "0"}),
    ],
)
def test_a_wrong_field_is_bound_to_its_message(
    browser: Browser, path: str, field: str, form: dict[str, str]
) -> None:
    """A screen reader reads the error at its field, and the eye finds it there."""
    page = browser.post(path, form | {"id": FORM}).text

    (control,) = re.findall(rf'<(?:input|select)[^>]* id="{field}"[^>]*>', page.replace("\n", " "))
    assert f'aria-describedby="{field}-error"' in control
    assert 'aria-invalid="true"' in control
    assert page.count(f'id="{field}-error"') == 1
