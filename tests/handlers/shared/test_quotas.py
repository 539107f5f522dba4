"""Quotas on the work of a visitor: one bound for all routes, wide enough for curiosity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import main
from handlers.home.stops import TOUR
from handlers.shared import quotas
from handlers.shared.quotas import INVITATIONS, ORDERS, QUILTS, SCHOOLS, SUMS, TENANTS, UPLOADS
from tests.handlers.conftest import Browser
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

LARGEST = {"size": "16", "palette": "indigo", "pattern": "rings", "pace": "fast"}
LOAD = {"rate": "500", "writers": "50", "seconds": "20", "amounts": "one"}
# What each route that people post to sets going, and what bounds that.
ONE_WRITE = {
    "blog_writing.create", "blog_writing.save", "blog_writing.comment", "blog_writing.empty",
    "blog_writing.delete", "blog_writing.delete_comment", "blog_writing.sign_out",
    "counters.click", "counters.resize", "counters.switch_limit", "grades.add", "grades.change",
    "grades.add_teacher", "grades.delete_teacher", "invitations.create", "invitations.change",
    "sums.create", "sums.add", "sums_api.add", "zeitgeist.steer",
}  # fmt: skip
# A thousand items in a few commits, all within the request that brings them.
ONE_BODY = {"sums_api.add_batch"}
ONE_AT_A_TIME = {
    "blog_writing.fill", "counters.put_under_load", "grades.upload", "grades.make_up",
    "grades.check", "invitations.control", "numbers.measure",
}  # fmt: skip
LOCAL_ONLY = {"zeitgeist.reshape", "zeitgeist.replace_detector"}
IN_A_QUOTA = {
    "quilt.make", "orders.open_sale", "orders.send_courier", "tenants.begin", "sums.put_under_load",
    "invitations.upload", "invitations.sample_guests",
    "invitations.send", "grades.compare", "weblog.give", "zeitgeist.start", "demo_runs.run",
}  # fmt: skip


def test_each_route_that_sets_something_going_is_bounded(world: World) -> None:
    """S27: who adds a route says what bounds it: one write or body, one at a time, or a quota."""
    posted = {
        rule.endpoint
        for rule in world.app.url_map.iter_rules()
        if "POST" in (rule.methods or ())
        and not rule.endpoint.startswith(("rollforward_", "faults."))
    }

    assert posted == ONE_WRITE | ONE_BODY | ONE_AT_A_TIME | LOCAL_ONLY | IN_A_QUOTA


def many(browser: Browser, path: str, form: dict[str, Any], times: int) -> list[Any]:
    """Send a form again and again, each time as a new one."""
    return [browser.post(path, {"id": f"{number:032x}", **form}) for number in range(times)]


def test_quilts_beyond_a_visitors_share_are_refused_until_some_are_painted(
    world: World, browser: Browser, snapshot: Callable[[], Any]
) -> None:
    """S27: ten of the largest quilts are no flood; after them the page names the running work."""
    assert {response.status_code for response in many(browser, "/quilt", LARGEST, 10)} == {303}
    stored = snapshot()

    refused = browser.post("/quilt", {"id": "f" * 32, **LARGEST})

    assert refused.status_code == 429
    assert "2,560 squares under way" in refused.text
    assert int(refused.headers["Retry-After"]) > 0
    assert snapshot() == stored
    world.clock.sleep(60)
    assert browser.post("/quilt", {"id": "f" * 32, **LARGEST}).status_code == 303


def test_loads_of_sums_are_bounded_together(world: World, browser: Browser) -> None:
    """S27: each sum has one load at a time, and fifty sums would have fifty."""
    for number in range(4):
        browser.post("/sums", {"name": f"s{number}"})

    loads = [
        browser.post(f"/sums/s{number}/loads", {"id": f"{number:032x}", **LOAD})
        for number in range(4)
    ]

    assert [response.status_code for response in loads] == [303, 303, 303, 429]
    assert "30,000 items under way" in loads[3].text


def test_guests_and_mails_are_bounded_together(browser: Browser) -> None:
    """S27: of however many parties."""
    parties = [browser.create_party(f"{number:032x}") for number in range(5)]

    answers = [
        browser.post(f"{party}/sample-guests", {"id": f"{number + 100:032x}", "count": "10000"})
        for number, party in enumerate(parties)
    ]

    assert [response.status_code for response in answers] == [303, 303, 303, 429, 429]
    assert "guests and mails under way" in answers[3].text


@pytest.mark.parametrize("quota", [QUILTS, ORDERS, SUMS, INVITATIONS, SCHOOLS, TENANTS, UPLOADS])
def test_a_visitor_has_no_more_than_half(quota: quotas.Quota, world: World) -> None:
    """S27: one address cannot take all that there is."""
    assert 2 * quota.per_visitor <= quota.total


@pytest.mark.parametrize("demo", sorted({step.demo for step in TOUR} | {"quilt", "tenants"}))
def test_ten_presses_of_a_demo_are_no_flood(browser: Browser, demo: str) -> None:
    """S27: a visitor who presses a button repeatedly need not wait."""
    answers = many(browser, f"/demo/{demo}", {}, 10)

    assert {response.status_code for response in answers} == {303}


@pytest.mark.parametrize(
    ("statuses", "is_full"),
    [
        ([200], True),
        ([400], False),
        ([409], False),
        ([503], True),  # It may have begun.
        ([500], True),
        ([200, 409], True),  # The same form once more changes nothing of what goes on.
        ([409, 200], True),
    ],
    ids=str,
)
def test_what_was_refused_is_taken_out_of_the_quota_and_nothing_else(
    world: World, statuses: list[int], is_full: bool
) -> None:
    """S27: a form that is answered by a 4xx has begun nothing."""
    quota = quotas.Quota("tests", "tests", total=2, per_visitor=1)

    def ask(work_id: str, status: int) -> Any:
        quotas.let_in(quota, work_id, 1, 3600.0)
        return "", status

    app = main.create_app(world.settings, world.clients)
    app.add_url_rule("/ask/<work_id>/<int:status>", view_func=ask)
    client = app.test_client()

    assert [client.get(f"/ask/one/{status}").status_code for status in statuses] == statuses

    assert client.get("/ask/another/200").status_code == (429 if is_full else 200)
