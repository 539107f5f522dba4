"""The pages of parties: what visitors type, made-up addresses, and how sends are controlled."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb
from markupsafe import escape

from models.invitations import Party, party_key
from pipelines.invitations import sending
from rollforward.continuations.progress import progress
from tests.handlers.conftest import PARTY, Browser
from tests.handlers.hostile import XSS, tags
from tests.handlers.invitations.party import GUESTS, ID, PAGE, invite, upload
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.mark.parametrize("text", XSS)
def test_what_people_type_is_shown_as_text(world: World, browser: Browser, text: str) -> None:
    """S16: in a title, a place, a host, a note, a name, a file's name or a reason: text alone."""

    def pages(word: str, party_id: str) -> list[list[tuple[str, str]]]:
        details = dict.fromkeys(("title", "host", "place", "note"), word)
        page = browser.create_party(party_id, **details)
        cell = word.replace('"', '""')
        content = f'name,email\n"{cell}",a@example.com\nb,"{cell}"\n'
        file_name = word.replace('"', "%22") + ".csv"  # As browsers send it.
        form = upload(content, file_name, party_id[::-1][:31] + "0")
        assert browser.post(f"{page}/guests", form).status_code == 303
        world.settle()
        browser.post(f"{page}/send")
        world.settle()
        browser.post(f"{page}/details", {**PARTY, **details, "when": "never"})
        shown = [browser.get(path).text for path in ("/", "/invitations", page, f"{page}/live")]
        wrong = browser.post(f"{page}/details", {**PARTY, **details, "when": word}).text
        assert all(str(escape(word)) in page for page in shown[:3])
        return [tags(page) for page in (*shown, wrong)]

    plain = pages("harmless", "1" * 32)
    world.services.mail.clear()
    with world.context():
        party_key("1" * 32).delete()
    nasty = pages(text, "1" * 31 + "2")

    assert [sorted(set(page)) for page in nasty] == [sorted(set(page)) for page in plain]


BAD_DETAILS = [
    ("title", ""),
    ("title", "   "),
    ("title", "x" * 121),
    ("title", "a\nb"),
    ("title", "a\x00b"),
    ("title", "a\u2028b"),
    ("host", ""),
    ("host", "x" * 121),
    ("place", ""),
    ("place", "x" * 201),
    ("note", "x" * 2001),
    ("note", "a\x1bb"),
    ("note", "a\rb"),
    ("when", ""),
    ("when", "tomorrow"),
    ("when", "2030-02-30T19:30"),
    ("when", "2030-05-01T25:00"),
    ("when", "2030-05-01T19:30Z"),
    ("when", "2030-05-01T19:30+09:00"),
    ("when", "0001-01-01T00:00"),
    ("when", "9999-12-31T23:59"),
    ("when", "19:30"),
    ("when", "٢٠٣٠-05-01T19:30"),
]


@pytest.mark.parametrize(("name", "value"), BAD_DETAILS)
def test_details_that_make_no_party_are_sent_back(
    browser: Browser, snapshot: Callable[[], Any], name: str, value: str
) -> None:
    """S15: 400 with a sentence, the input kept, and nothing stored or changed."""
    browser.create_party(ID)
    stored = snapshot()
    form = {**PARTY, "title": "Kept text", name: value}

    created = browser.post("/invitations", {"id": "d" * 32, **form})
    changed = browser.post(f"{PAGE}/details", form)

    for response in (created, changed):
        assert response.status_code == 400
        assert f'id="{name}-error"' in response.text
        assert "Kept text" in response.text or name == "title"
    assert snapshot() == stored


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("title", "庭の　パーティー"),
        ("title", "👩‍👩‍👧 party"),
        ("title", "x" * 120),
        ("place", "a b"),
        ("note", "two\r\nlines"),
        ("when", "2030-05-01 19:30"),
    ],
)
def test_details_in_any_script_make_a_party(browser: Browser, name: str, value: str) -> None:
    """Wide blanks, joined emoji and line breaks in a note are what people write."""
    page = browser.create_party(ID, **{name: value})

    assert browser.get(page).status_code == 200


def test_saving_what_is_shown_changes_nothing(world: World, browser: Browser) -> None:
    """A form that is sent back unchanged changes nothing, with any seconds in its date."""
    browser.create_party(ID, when="2030-05-01T19:30:45.5")

    browser.post(f"{PAGE}/details", PARTY)

    with world.context():
        assert party_key(ID).get().change == 1


def test_a_party_is_created_once_for_each_form(world: World, browser: Browser) -> None:
    """Reloading the response of a form, or pressing twice, makes no second party."""
    browser.create_party(ID)
    browser.create_party(ID, title="Another")

    with world.context():
        assert [party.title for party in Party.query()] == ["Garden party"]


ODD_IDS = ["x", "A" * 32, "a" * 31, "a" * 33, "é" * 32, "a" * 31 + "%0a", "..%2f..", "a" * 3_000]


@pytest.mark.parametrize("party_id", [*ODD_IDS, "c" * 32], ids=lambda text: text[:12])
def test_a_party_that_is_not_there_is_404(
    browser: Browser, snapshot: Callable[[], Any], party_id: str
) -> None:
    """S28: a wrong id and a missing party look the same on every route."""
    stored = snapshot()

    pages = [browser.get(f"/invitations/{party_id}"), browser.get(f"/invitations/{party_id}/live")]
    for verb in ("details", "guests", "sample-guests", "send", "sends/x/cancel", "sends/x/retry"):
        pages.append(browser.post(f"/invitations/{party_id}/{verb}", {"id": "d" * 32, **PARTY}))

    assert {response.status_code for response in pages} == {404}
    assert snapshot() == stored


@pytest.mark.parametrize("form_id", ["", "x", *ODD_IDS[1:4], "a" * 31 + "\n", "../../etc"])
def test_a_form_needs_an_id_of_ours(
    browser: Browser, bare_party: str, snapshot: Callable[[], Any], form_id: str
) -> None:
    """S25: an id that no page of ours made is refused, and never becomes a key."""
    stored = snapshot()

    responses = [
        browser.post("/invitations", {**PARTY, "id": form_id}),
        browser.post(f"{PAGE}/guests", {"id": form_id, "pasted": GUESTS}),
        browser.post(f"{PAGE}/sample-guests", {"id": form_id, "count": "10"}),
    ]

    assert [response.status_code for response in responses] == [400] * 3
    assert snapshot() == stored


@pytest.mark.parametrize(
    "after", ["x", "0" * 23, "0" * 25, "G" * 24, "0" * 24 + "%0a", "' or 1", "0" * 200]
)
def test_a_page_of_guests_that_is_no_place_is_400(
    browser: Browser, bare_party: str, after: str
) -> None:
    """S14: a place that is not a hash of this party's list runs no query."""
    assert browser.get(f"{PAGE}?after={after}").status_code == 400


def test_every_guest_is_on_one_page_of_the_list(browser: Browser, world: World) -> None:
    """I2: paging shows each guest once, and ends."""
    browser.create_party(ID)
    browser.post(f"{PAGE}/sample-guests", {"id": "b" * 32, "count": "100"})
    world.settle()

    seen: list[str] = []
    path = f"{PAGE}?tab=guests"
    for _ in range(20):
        text = browser.get(path).text
        seen += re.findall(r"guest\d+@example\.com", text)
        following = re.search(r"after=[0-9a-f]{24}", text)
        if following is None:
            break
        path = f"{PAGE}?{following[0]}"

    assert len(seen) == len(set(seen)) == 100


@pytest.mark.parametrize("verb", ["cancel", "resume", "retry"])
def test_only_the_sends_of_this_party_are_controlled(
    browser: Browser, party: str, snapshot: Callable[[], Any], verb: str
) -> None:
    """S28: another run, the party's own import included, is not there for these buttons."""
    stored = snapshot()

    for run_id in ("0" * 40, "b" * 32, "x", "é"):
        assert browser.post(f"{PAGE}/sends/{run_id}/{verb}").status_code == 404
    assert snapshot() == stored


def test_a_foreign_partys_send_is_not_controlled(
    world: World, browser: Browser, party: str
) -> None:
    """S28: a run's id opens it in its own party alone."""
    browser.create_party("c" * 32)
    with world.context():
        run_id = party_key(ID).get().sends[0]["run_id"]

    assert browser.post(f"/invitations/{'c' * 32}/sends/{run_id}/cancel").status_code == 404
    assert browser.post(f"{PAGE}/sends/{run_id}/cancel").status_code == 303


def test_the_page_says_what_became_of_every_row_and_mail(
    world: World, browser: Browser, party: str
) -> None:
    """Bad rows by line, refused mails by address, and a button that tries them again."""
    assert "line 3:" in browser.get(PAGE).text
    world.services.mail.set_faults(refused=("bob@example.com",))
    browser.post(f"{PAGE}/details", {**PARTY, "place": "Cellar"})
    browser.post(f"{PAGE}/send")
    world.settle()
    text = browser.get(PAGE).text
    assert "bob@example.com: 550" in text
    world.services.mail.set_faults(refused=())

    retry = re.search(rf"{PAGE}/sends/[0-9a-f]+/retry", text)
    assert retry is not None
    for _ in range(2):
        assert browser.post(retry[0]).status_code == 303
    world.settle()

    mails = [mail.recipients[0] for mail in world.services.mail.messages()]
    assert sorted(mails) == ["ann@example.com"] * 2 + ["bob@example.com"] * 2
    assert "550 " not in browser.get(PAGE).text


def test_a_send_is_cancelled_and_resumed_by_buttons(world: World, browser: Browser) -> None:
    """Cancel before the first mail, resume, and all get one mail; retry has to wait."""
    browser.create_party(ID)
    invite(browser, world)
    browser.post(f"{PAGE}/send")
    with world.context():
        run_id = party_key(ID).get().sends[0]["run_id"]
    early = browser.post(f"{PAGE}/sends/{run_id}/retry", follow_redirects=True)
    assert "Not finished yet" in early.text

    browser.post(f"{PAGE}/sends/{run_id}/cancel")
    world.settle()
    assert world.services.mail.count() == 0
    browser.post(f"{PAGE}/sends/{run_id}/resume")
    world.heal(lambda: progress(run_id).state == "finished")

    assert world.services.mail.count() == 2


def test_pressing_send_says_what_it_did(world: World, browser: Browser, party: str) -> None:
    """The second press promises no second mail; a press without guests says why."""
    repeated = browser.post(f"{PAGE}/send", follow_redirects=True)
    empty = browser.create_party("c" * 32)
    nobody = browser.post(f"{empty}/send", follow_redirects=True)

    assert "0 new mails" in repeated.text
    assert "add guests first" in nobody.text
    assert world.services.mail.count() == 2


def test_one_late_guest_has_no_average(world: World, browser: Browser) -> None:
    """A send of a few mails has totals: the cost of the page is no cost of a mail."""
    browser.create_party(ID)
    invite(browser, world, "name,email\nLate,late@example.com\n")
    browser.post(f"{PAGE}/send")
    world.settle()

    page = browser.get(PAGE).text
    costs = page.partition('class="cost-strip"')[2].partition("</section>")[0]

    assert re.findall(r'class="each">([^<]*)<', costs)[:3] == ["for all mails", *["for 1 mail"] * 2]
    assert "per mail" not in costs
    assert "mails each" not in costs


def test_a_poll_costs_the_same_however_many_mails_have_been_sent(
    world: World, browser: Browser
) -> None:
    """A page asks again and again: what is done is not read again, in 4 pages or in 30."""
    browser.create_party(ID)
    rows = "".join(f"Guest {n},guest{n}@example.com\n" for n in range(40))
    invite(browser, world, f"name,email\n{rows}")
    with world.context():
        sending.send(world.clients, ID, page_size=1)
    reads = []
    for done in (4, 26):
        for _ in range(done):
            world.deliver(world.engine.due()[0].task_name)
        browser.get(f"{PAGE}/live")
        reads_before = world.clients.meter.total().reads
        browser.get(f"{PAGE}/live")
        reads.append(world.clients.meter.total().reads - reads_before)

    assert reads[1] <= reads[0] < 40


def test_a_list_of_parties_says_that_there_are_older_ones(world: World, browser: Browser) -> None:
    """Each run of the demo makes one, and after fifty the first had gone without a word."""
    when = datetime.datetime(2030, 5, 1)  # noqa: DTZ001  As rows have it.
    details = {"title": "T", "host": "H", "place": "P", "when": when, "created": when}
    with world.context():
        ndb.put_multi([Party(key=party_key(f"{i:032x}"), **details) for i in range(50)])
    fifty = browser.get("/invitations").text
    browser.create_party(ID)

    one_more = browser.get("/invitations").text

    assert fifty.count('<th scope="row">') == one_more.count('<th scope="row">') == 50
    assert "The newest 50 are shown" not in fifty
    assert "The newest 50 are shown" in one_more
