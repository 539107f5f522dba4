"""The console's data browser: kinds, entities, one entity; a change, and an export."""

import datetime
import html
import json
import re
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from google.cloud import datastore

from rollforward.local.console.reading import declared_kinds, entity_changes
from rollforward.local.console.reading.datastore_reader import DatastoreReader
from rollforward.local.console.reading.entities import (
    BadKeyError,
    Entities,
    Query,
    path_of,
)
from rollforward.local.services import standalone
from tests.rollforward.local.conftest import datastore_client
from tests.rollforward.local.console.conftest import EVIL

AT = datetime.datetime(2026, 11, 22, 10, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def store():
    """An emulator with books on a shelf, and one in another namespace."""
    with standalone.datastore_emulator() as address:
        client = datastore_client(address)
        shelf = client.key("Shelf", "upper/left")
        books = []
        for number in range(1, 61):
            book = datastore.Entity(client.key("Book", number, parent=shelf), ("note",))
            book.update(cents=number * 100, title=f"Volume {number}", note=EVIL)
            books.append(book)
        books[6].update(
            at=AT,
            shelf=shelf,
            packed=json.dumps({"名": "山田"}).encode(),
            raw=b"\xff\x00",
            tags=["a", "b"],
            sold=None,
        )
        client.put_multi(books)
        other = datastore.Entity(client.key("Book", "far", namespace="far-away"))
        client.put(other)
        client.close()
        yield address


@pytest.fixture
def stored(platform, store):
    """A platform with that store."""
    platform.datastore_address = store


pytestmark = pytest.mark.services


def test_where_kinds_cannot_be_listed_those_are_shown_that_the_sources_declare(
    tmp_path, monkeypatch
):
    """The Firestore emulator, which `make run` starts, refuses both questions of the page: once.

    It sorts a whole kind for its first key, so the page asks for no kind until it is to count.
    """
    (tmp_path / "models.py").write_text(
        "from google.cloud import ndb\n"
        "class Base(ndb.Model): pass\nclass Book(Base): pass\nclass Gone(ndb.Model): pass\n"
    )
    (tmp_path / "broken.py").write_text("import ndb\ndef")
    with standalone.datastore_emulator("firestore") as address:
        client, reader = datastore_client(address), DatastoreReader("demo-local")
        client.put_multi([datastore.Entity(client.key("Book", n)) for n in range(1, 4)])
        client.put(datastore.Entity(client.key("Undeclared", 1)))
        entities, asked = Entities(reader, [tmp_path]), asked_of(reader, address, monkeypatch)

        kinds = entities.kinds(address)
        assert [(kind.name, kind.count, kind.is_declared) for kind in kinds] == [
            *(("Base", None, True), ("Book", None, True), ("Gone", None, True))
        ]
        assert entities.namespaces(address) == [""]
        assert asked == ["__kind__"]
        assert entities.kinds(address) == kinds
        assert asked == ["__kind__"]
        (books,) = entities.kinds(address, counts=True)
        assert (books.name, books.count, books.is_declared) == ("Book", 3, False)
        assert sorted(asked) == ["Base", "Book", "Gone", "__kind__"]
        client.close()


def asked_of(reader, address, monkeypatch):
    """Return the kinds that queries ask for, from now on."""
    api, asked = reader.client(address)._datastore_api, []
    run_query = api.run_query

    def counted(*args, **how):
        asked.append(how["request"]["query"].kind[0].name)
        return run_query(*args, **how)

    monkeypatch.setattr(api, "run_query", counted)
    return asked


def test_kinds_are_listed_by_one_question_and_counted_by_one_each(store, monkeypatch):
    """The emulator sorts the whole kind for each reply of 300 keys: a large kind took seconds."""
    client, reader = datastore_client(store), DatastoreReader("demo-local")
    pages = [datastore.Entity(client.key("Leaf", n, namespace="large")) for n in range(1, 320)]
    client.put_multi(pages)
    asked = asked_of(reader, store, monkeypatch)

    (uncounted,) = Entities(reader).kinds(store, "large")

    assert (uncounted.name, uncounted.count, uncounted.is_cut) == ("Leaf", None, False)
    assert asked == ["__kind__"]

    asked.clear()
    (leaves,) = Entities(reader).kinds(store, "large", counts=True)

    assert (leaves.count, leaves.is_cut) == (300, True)
    assert asked == ["__kind__", "Leaf"]


def test_a_page_of_a_kind_is_a_query_of_keys_and_a_lookup(store, monkeypatch):
    """Whatever it holds: no query brings whole entities, and none counts."""
    reader = DatastoreReader("demo-local")
    api, calls = reader.client(store)._datastore_api, []
    for name in ("run_query", "lookup"):
        call = getattr(api, name)

        def counted(*args, call=call, name=name, **how):
            query = how["request"].get("query")
            calls.append((name, [each.property.name for each in query.projection] if query else []))
            return call(*args, **how)

        monkeypatch.setattr(api, name, counted)
    entities, cursor, keys = Entities(reader), "", []

    while not keys or cursor:
        page = entities.page(store, Query("Book", cursor=cursor))
        keys += [row.key for row in page.rows]
        cursor = page.next_cursor

    assert len(keys) == len(set(keys)) == 60
    assert calls == [("run_query", ["__key__"]), ("lookup", [])] * 3


def test_kinds_are_listed_by_namespace(browser, stored):
    """With how many entities each has, when that is asked for."""
    page, far = (browser.get(f"/data?counts=yes{ns}").text for ns in ("", "&ns=far-away"))
    listed = browser.get("/data?ns=far-away").text

    assert 'href="/data/kind/Book?ns=far-away">Book</a></th></tr>' in listed
    assert 'href="/data?counts=yes&amp;ns=far-away"' in listed

    assert re.search(r'href="/data/kind/Book">Book</a>.*?>60<', page, re.DOTALL)
    assert '<option value="far-away">' in page
    assert re.search(r'href="/data/kind/Book\?ns=far-away">Book</a>.*?>1<', far, re.DOTALL)


def test_pages_of_a_kind_show_each_entity_once(browser, stored):
    """Following Next; escaped."""
    seen, path = [], "/data/kind/Book"
    while path:
        page = browser.get(path).text
        assert EVIL not in page
        seen += re.findall(r">Shelf upper/left / (\d+)<", page)
        following = re.search(r'<a href="([^"]+)" rel="next"', page)
        path = following[1].replace("&amp;", "&") if following else ""

    assert [int(each) for each in seen] == [*range(1, 61)]


@pytest.mark.parametrize(
    ("asked", "found"),
    [("cents&value=700", ["7"]), ("title&value=Volume+8", ["8"]), ("cents&value=%22700%22", [])],
)
def test_a_kind_is_filtered_by_an_indexed_property(browser, stored, asked, found):
    """A number is a number; in quotes it is a text."""
    page = browser.get(f"/data/kind/Book?property={asked}").text

    assert re.findall(r">Shelf upper/left / (\d+)<", page) == found


def test_an_entity_shows_each_property_with_its_type(browser, stored):
    """Times, keys, bytes that hold JSON, bytes that do not, and what is not indexed."""
    path = quote(json.dumps(["Shelf", "upper/left", "Book", 7]))

    page = browser.get(f"/data/entity?path={path}").text

    for part in ("2026-11-22", "山田", "00000000  ff 00", "Volume 7", "base64", "null"):
        assert part in page, part
    assert 'href="/data/entity?path=' in page
    assert "&lt;script&gt;" in page
    assert re.search(r">note</th>.*?<td data-label=\"Indexed\"[^>]*>no<", page, re.DOTALL)


BOOK = json.dumps(["Shelf", "upper/left", "Book", 9])


def change(browser, **fields):
    """Send the form that changes a property of a book."""
    page = browser.get(f"/data/entity?path={quote(BOOK)}").text
    state = re.search(r'name="state" value="(\w+)"', page)[1]
    return browser.post("/data/entity", {"path": BOOK, "state": state, **fields})


def test_a_property_is_changed_and_keeps_its_type_and_index(browser, stored, store):
    """The others stay as they were."""
    answer = change(browser, property="cents", value="901")
    text = change(browser, property="note", value="<b>\r\nnew")

    assert (answer.status, text.status) == (303, 303)
    client = datastore_client(store)
    book = client.get(client.key(*json.loads(BOOK)))
    client.close()
    assert dict(book) == {"cents": 901, "title": "Volume 9", "note": "<b>\nnew"}
    assert book.exclude_from_indexes == {"note"}


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"property": "cents", "value": "many"}, 400, "value: "),
        ({"property": "cents", "value": "true"}, 400, "value: "),
        ({"property": "cents", "value": "1.5"}, 400, "value: "),
        ({"property": "cents", "value": "9" * 30}, 400, "value: "),
        ({"property": "title", "value": "x" * 100_001}, 400, "value: "),
        ({"property": "other", "value": "1"}, 400, "property: "),
        ({"property": "cents", "value": "1", "path": "[]"}, 400, "key"),
        ({"property": "cents", "value": "1", "state": "old"}, 409, "changed meanwhile"),
    ],
)
def test_a_change_that_cannot_be_changes_nothing(browser, stored, fields, status, reason):
    """It is refused by the name of its field."""
    path = f"/data/entity?path={quote(BOOK)}"
    before = browser.get(path).text

    answer = change(browser, **fields)

    assert (answer.status, reason in answer.text) == (status, True)
    assert browser.get(path).text == before


@pytest.mark.parametrize("text", ["1" + "0" * 400, "NaN", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_refused(text):
    """Also one that is an integer for JSON, and too large for a float."""
    price = SimpleNamespace(name="price", type="number")

    with pytest.raises(entity_changes.BadPropertyError, match="finite"):
        entity_changes._value(SimpleNamespace(properties=[price]), "price", text)


def test_a_change_needs_the_token_of_the_page(browser, stored):
    """Another site's form has none."""
    assert browser.post("/data/entity", {"path": BOOK}, token="x").status == 403


def test_the_entity_of_a_run_and_its_attempts_lead_to_each_other(browser, stored, store):
    """Its name is the run's id; other kinds and namespaces have entities of that name, too."""
    client, run_id = datastore_client(store), "orders|七-001"
    keys = [client.key("FlowRun", run_id), client.key("Book", run_id)]
    keys.append(client.key("FlowRun", run_id, namespace="far-away"))
    client.put_multi([datastore.Entity(key) for key in keys])
    attempts = browser.get(f"/attempts/flows/{quote(run_id, safe='')}").text
    (url,) = re.findall(r'href="(/data/entity[^"]*)"', attempts)

    page = browser.get(html.unescape(url)).text
    other = browser.get(html.unescape(url).replace("FlowRun", "Book")).text
    far = browser.get(f"{html.unescape(url)}&ns=far-away").text
    client.delete_multi(keys)
    client.close()

    for place in ("runs", "attempts"):
        link = f'href="/{place}/flows/{quote(run_id, safe="")}"'
        assert (link in page, link in other, link in far) == (True, False, False)


def test_a_kind_is_exported_as_lines_of_json(browser, stored, monkeypatch):
    """Its first entities, with their keys; no more than the bound."""
    monkeypatch.setattr(entity_changes, "MAX_EXPORTED", 7)

    answer = browser.get("/data/export/Book")

    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["key"][-1] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert lines[6]["properties"]["title"] == "Volume 7"
    assert "attachment" in answer.headers["content-disposition"]
    assert browser.get("/data/export/__nothing__").status in (200, 400)


def test_an_entity_is_found_by_its_id(browser, stored):
    """What was typed leads to the entity, or to a page that says there is none."""
    answer = browser.get("/data/kind/Book?key=99")

    assert answer.status == 303
    assert browser.get(answer.headers["location"]).status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/data/entity",
        "/data/entity?path=x",
        "/data/entity?path=[]",
        "/data/kind/Book?cursor=x",
        "/data/kind/Book?cursor=%C3%A9%F0",
        "/data/kind/__nothing__",
        "/data?ns=bad%00name",
    ],
)
def test_a_bad_address_is_no_server_error(browser, stored, path):
    """It gets a page that says so, or one without rows."""
    assert browser.get(path).status in (200, 400, 404)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/data/kind/Book?property=__key__&value=x", "for its id or name"),
        ("/data/kind/Book?property=cents&value=" + "9" * 20, "fit in 64 bits"),
        ("/data/kind/Book?property=cents&value=-9223372036854775809", "fit in 64 bits"),
        ("/data/kind/Book?property=title&value=" + quote(r'"\ud800"'), "valid Unicode"),
        ("/data/entity?path=" + quote(r'["Book","\ud800"]'), "valid Unicode"),
        ("/data/entity?path=" + quote(r'["\ud800",1]'), "valid Unicode"),
    ],
)
def test_what_datastore_cannot_hold_is_refused_with_the_reason(browser, stored, path, reason):
    """Typed by a person, so a 400 that says what is wrong."""
    answer = browser.get(path)

    assert answer.status == 400
    assert reason in answer.text


@pytest.mark.parametrize("value", ["9223372036854775807", "-9223372036854775808"])
def test_every_integer_of_64_bits_can_be_looked_for(browser, stored, value):
    """The first and the last of them."""
    assert browser.get(f"/data/kind/Book?property=cents&value={value}").status == 200


@pytest.mark.parametrize(
    "text", ["", "7", '["Book"]', '["Book", true]', '["", 1]', '["Book", 0]', "[" * 3000]
)
def test_what_is_no_key_is_refused(text):
    """Before Datastore is asked."""
    with pytest.raises(BadKeyError):
        path_of(text)


def test_without_datastore_the_pages_say_so(browser):
    """They are no errors of ours."""
    for path, status in (("/data", 200), ("/data/kind/Book", 200)):
        page = browser.get(path)
        assert (page.status, "Datastore does not answer" in page.text) == (status, True)
    assert browser.get("/data/entity?path=[%22Book%22,1]").status == 502


def test_sources_are_parsed_once_until_they_are_changed(tmp_path, monkeypatch):
    """The page of kinds reads the app and the library: 400 files at each load took a second."""
    source = tmp_path / "rows.py"
    source.write_text("from google.cloud import ndb\nclass Leaf(ndb.Model): pass\n")
    parsed = []
    parse = declared_kinds.ast.parse
    monkeypatch.setattr(declared_kinds.ast, "parse", lambda text: parsed.append(1) or parse(text))

    assert [declared_kinds.declared_kinds([tmp_path]) for _ in range(3)] == [["Leaf"]] * 3
    assert len(parsed) == 1
    source.write_text("from google.cloud import ndb\nclass Twig(ndb.Model): pass\n\n")
    assert declared_kinds.declared_kinds([tmp_path]) == ["Twig"]
