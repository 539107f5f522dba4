"""Requests and rows that no browser and no task of the library makes, on the console's pages."""

from __future__ import annotations

import pytest

from tests.infra.world import Services
from tests.rollforward.console.conftest import Desk, desk_with
from tests.rollforward.console.test_pages import ROOT, Browser

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.fixture
def desk(services: Services) -> Desk:
    """A desk whose app knows one task."""
    return desk_with(services)


@pytest.mark.parametrize("name", ["x" * 300 + ".css", "😀" * 100 + ".js", "\0.css", ".css"])
def test_a_file_of_the_look_that_no_system_can_have_is_not_there(desk: Desk, name: str) -> None:
    """A name that is too long for the file system is 404, as any other that is none of ours."""
    browser = Browser(desk, "read")

    assert browser.open(f"/static/{name}").status_code == 404
    assert browser.open("/static/console.css").status_code == 200


def test_a_dead_task_whose_run_is_half_a_character_is_shown(desk: Desk) -> None:
    """No run has such an id, so the page has no link to one; the task can be deleted."""
    dead_id = desk.give_up("a", path="/tasks/continuations/x", body=b'{"run_id": "\\ud83d"}')
    browser = Browser(desk)

    text = browser.read(f"/dead/one/{dead_id}")
    browser.submit(f"/dead/one/{dead_id}", "/dead/change", target=f"{dead_id}:delete")

    assert f"{ROOT}/runs/continuations/" not in text
    assert browser.open(f"/dead/one/{dead_id}").status_code == 404


@pytest.mark.parametrize("place", ["", '; filename="a.csv"'])
@pytest.mark.parametrize("text", ["x", "x" * 300])
def test_a_part_of_a_form_without_a_name_is_a_bad_request(
    desk: Desk, place: str, text: str
) -> None:
    """Of the console, and of any page that takes a form."""
    part = f"--b\r\nContent-Disposition: form-data{place}\r\n\r\n{text}\r\n--b--\r\n"

    response = Browser(desk).client.post(
        f"{ROOT}/dead/change",
        data=part,
        content_type="multipart/form-data; boundary=b",
        headers={"X-Role": "operate"},
    )

    assert response.status_code == 400
    assert "each field of a form must have a name" in response.text
