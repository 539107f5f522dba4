"""The pages of orders: forms act once, refuse bad input, and show where each order is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from handlers.orders.stage import number_of
from handlers.shared.incidents import Delivery
from models.orders import newest_sales
from tests.handlers.conftest import Browser
from tests.handlers.looking import look_only
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM, OTHER = "a" * 32, "b" * 32
ASKED = {"orders": "6", "stock": "5", "patience": "60", "courier": "you", "pace": "fast"}


@pytest.fixture
def sale(browser: Browser) -> str:
    """A sale of which no order is started, and where its page is."""
    response = browser.post("/orders", {"id": FORM, **ASKED})
    assert response.status_code == 303, response.text
    return response.headers["Location"].partition("#")[0]


@pytest.mark.parametrize("path", ["/orders", f"/orders/{FORM}?tab=table", f"/orders/{FORM}/live"])
def test_what_is_read_changes_nothing(
    browser: Browser, world: World, sale: str, snapshot: Callable[[], Any], path: str
) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    world.settle(patience_s=1)
    look_only(browser, snapshot, path)


def test_the_front_page_and_the_menu_lead_here(browser: Browser) -> None:
    """A card and an entry; before the first sale the page says what to press."""
    assert browser.get("/").text.count('href="/orders"') == 2
    assert "Press “Order”" in browser.get("/orders").text


def test_orders_move_through_their_lanes(browser: Browser, world: World, sale: str) -> None:
    """Accepted, then waiting, then done; the rest is rejected or refunded, and all adds up."""
    assert "0 of 6 orders ended" in browser.get(sale).text

    world.settle(patience_s=1)
    waiting = browser.get(sale).text
    assert lane(waiting, "charged") == 5
    assert lane(waiting, "rejected") == 1
    assert "The courier comes" in waiting
    assert browser.post(f"{sale}/courier", {"visit": "half"}).status_code == 303
    world.settle(patience_s=100)

    after = browser.get(f"{sale}?tab=table").text
    assert (lane(after, "done"), lane(after, "refunded"), lane(after, "rejected")) == (3, 2, 1)
    assert "6 of 6 orders ended, 0 charged twice, 0 lost, 0 duplicated" in after
    assert "Adds up" in after
    assert "sold out" in after
    assert "no courier came in time" in after
    assert 'data-moving="no"' in after
    assert f"{sale}/courier" not in after


def lane(page: str, stage: str) -> int:
    """Return how many cards a lane has."""
    start = page.index(f'id="lane-{stage}"')
    return page[start : page.index("</li>\n", start + 1)].count("card-dot")


def test_each_card_leads_to_its_flow(browser: Browser, world: World, sale: str) -> None:
    """The console of the app shows its steps."""
    world.settle(patience_s=1)
    flow = f"/rollforward/runs/flows/orders%7C{FORM}-002"
    assert f'href="{flow}"' in browser.get(sale).text

    page = browser.get(flow)

    assert page.status_code == 200
    assert "note payment" in page.text


def test_a_form_that_is_sent_twice_opens_one_sale(
    browser: Browser, world: World, sale: str
) -> None:
    """The second one leads to the same page."""
    repeated = browser.post("/orders", {"id": FORM, **ASKED, "orders": "60"})

    assert repeated.headers["Location"].partition("#")[0] == sale
    with world.context():
        assert [row.orders for row in newest_sales().fetch(2)] == [6]


def test_a_form_whose_sale_is_deleted_is_told(browser: Browser, world: World, sale: str) -> None:
    world.settle(patience_s=1)
    with world.context():
        newest_sales().get().key.delete()

    assert browser.post("/orders", {"id": FORM, **ASKED}).status_code == 410
    assert browser.get(sale).status_code == 404


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("orders", text) for text in ("0", "201", "", "٣")),
        ("stock", "201"),
        *(("patience", "1"), ("courier", "<b>"), ("pace", "")),
    ],
)
def test_what_cannot_be_ordered_is_refused(
    browser: Browser, snapshot: Callable[[], Any], field: str, value: str
) -> None:
    """400 beside the field, what was typed kept and escaped, and nothing is stored."""
    browser.token()
    stored = snapshot()

    response = browser.post("/orders", {"id": FORM, **ASKED, field: value})

    assert response.status_code == 400
    assert f'id="{field}-error"' in response.text
    assert "<b>" not in response.text.partition('id="now"')[2].partition("stage-show")[0]
    assert snapshot() == stored


@pytest.mark.parametrize(
    ("path", "form", "status"),
    [
        ("/orders", {"id": "x", **ASKED}, 400),
        (f"/orders/{FORM}/courier", {"visit": "none"}, 400),
        (f"/orders/{OTHER}/courier", {"visit": "all"}, 404),
        ("/orders/x/courier", {"visit": "all"}, 404),
    ],
)
def test_bad_requests_change_nothing(
    browser: Browser,
    sale: str,
    snapshot: Callable[[], Any],
    path: str,
    form: dict[str, str],
    status: int,
) -> None:
    stored = snapshot()
    assert browser.post(path, form).status_code == status
    assert browser.post(path, form, token="").status_code == 403
    assert snapshot() == stored


@pytest.mark.parametrize("path", [f"/orders/{OTHER}", "/orders/x", "/orders/x/live"])
def test_pages_of_nothing_are_not_found(browser: Browser, path: str) -> None:
    assert browser.get(path).status_code == 404


def test_the_code_that_ran_is_shown(browser: Browser) -> None:
    """From the source that runs."""
    text = browser.get("/orders?tab=code").text
    assert "step.outside(" in text
    assert text.count("<figure") == 6


def test_one_press_of_the_front_page_orders(browser: Browser, world: World) -> None:
    """Forty orders, once for each form."""
    for _ in range(2):
        assert browser.post("/demo/orders", {"id": FORM}).headers["Location"] == f"/orders/{FORM}"
    with world.context():
        assert [row.orders for row in newest_sales().fetch(2)] == [40]


@pytest.mark.parametrize(
    ("body", "number"),
    [({"run_id": f"orders|{FORM}-017"}, 17), ({"run_id": "x"}, None), ({}, None), (None, None)],
)
def test_a_delivery_is_named_by_its_order(
    services: object, body: dict[str, Any] | None, number: int | None
) -> None:
    delivery = Delivery(
        *("t", "orders", "/tasks/flows/orders", "normal", (), 0.0, 0.0, 200, None, "", "done"),
        None,
        body,
    )
    assert number_of(delivery) == number
