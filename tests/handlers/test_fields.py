"""Texts of requests: each has a limit, which is looked at before the text is."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pydantic
import pytest
from flask import Flask
from werkzeug.routing import Rule

from rollforward.flask.api import pull_queues, streams
from rollforward.flask.context import API_BLUEPRINTS, CONSOLE_API, MACHINE_BLUEPRINTS
from rollforward.flask.guards import fields
from tests.handlers.conftest import Browser
from tests.infra.documents import text_of
from tests.infra.world import World

one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM = {"id": "d" * 32}
# Of the parts of an address; a route takes those that fit.
PARTS = {
    "party_id": "a" * 32, "run_id": "0" * 40, "verb": "stop", "number": "1", "order": "x!y!1",
    "student_id": "a" * 32, "teacher_id": "a" * 32, "school": "demo", "name": "visitors",
    "playback_id": "a" * 32, "version": 1, "to": "on", "switch": "errors", "quilt_id": "a" * 32,
    "tag": "x", "sale_id": "a" * 32,
}  # fmt: skip


def routes(app: Flask, method: str) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Yield the address of each route that people use, and what its fields are limited to."""
    taken = (*MACHINE_BLUEPRINTS, *API_BLUEPRINTS, CONSOLE_API)
    for rule in app.url_map.iter_rules():
        blueprint = rule.endpoint.partition(".")[0]
        if method in (rule.methods or ()) and blueprint not in (*taken, "sums_api", "static"):
            yield _address(app, rule), fields.limits_of(app.view_functions[rule.endpoint])


def _address(app: Flask, rule: Rule) -> str:
    values = {
        name: next((w for w in _words(rule, name)), PARTS.get(name, "x")) for name in rule.arguments
    }
    built = rule.build(values)
    assert built is not None, rule
    return str(built[1])


def _words(rule: Rule, name: str) -> list[str]:
    """Return the words that a part of an address may be, if its route lists them."""
    listed = re.search(rf"<any\(([^)]*)\):{name}>", rule.rule)
    return [word.strip() for word in listed[1].split(",")] if listed else []


@one_emulator
def test_each_field_of_each_form_has_a_limit(
    world: World, browser: Browser, snapshot: Callable[[], Any]
) -> None:
    """S23: one character more is a 413 that names field and limit, and nothing changes.

    A field that no route mentions has the least limit.
    """
    stored, tried = snapshot(), 0

    for address, declared in routes(world.app, "POST"):
        for name, limit in {
            "anything": fields.MAX_CHARS,
            "id": fields.MAX_CHARS,
            **declared,
        }.items():
            response = browser.post(address, {**FORM, name: "x" * (limit + 1)})

            assert response.status_code == 413, (address, name)
            assert f"{name} must have at most {limit:,} characters" in response.text
            tried += 1

    assert tried > 70
    assert snapshot() == stored


@one_emulator
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_each_of_several_values_of_a_field_is_measured(browser: Browser, method: str) -> None:
    """S23: not the first one alone."""
    values = ["x", "x" * (fields.MAX_CHARS + 1)]

    if method == "POST":
        response = browser.post("/sums", {**FORM, "name": values})
    else:
        response = browser.get("/sums?name=" + "&name=".join(values))

    assert response.status_code == 413


@one_emulator
def test_each_field_of_each_address_has_a_limit(world: World, browser: Browser) -> None:
    """S23: a query string is measured like a form."""
    for address, declared in routes(world.app, "GET"):
        for name, limit in {
            "anything": fields.MAX_CHARS,
            "tab": fields.MAX_CHARS,
            **declared,
        }.items():
            response = browser.get(f"{address}?{name}={'x' * (limit + 1)}")

            assert response.status_code in (413, 414), (address, name)


@one_emulator
def test_no_route_reads_a_field_before_it_is_measured(world: World) -> None:
    """S23: the guard comes before the token of the form is looked at, which is a field, too."""
    order = [guard.__name__ for guard in world.app.before_request_funcs[None]]

    assert order.index("check_head") < order.index("check_origin")
    text = text_of("rollforward/flask/guards/security.py")
    assert text.index("fields.check_form()") < text.index("csrf.protect()")


@one_emulator
@pytest.mark.parametrize(
    ("path", "content", "kind", "status"),
    [
        ("/sums", "a=1&" * 100_000, "application/x-www-form-urlencoded", 413),
        ("/sums", "&" * 400_000, "application/x-www-form-urlencoded", 413),
        ("/sums?" + "a=1&" * 1_000, "", "application/x-www-form-urlencoded", 413),
        ("/sums?" + "a" * 5_000, "", "application/x-www-form-urlencoded", 414),
        ("/sums/" + "a" * 5_000, "", "application/x-www-form-urlencoded", 414),
    ],
)
def test_a_request_has_a_limited_number_of_fields(
    browser: Browser, path: str, content: str, kind: str, status: int
) -> None:
    """S23: a million fields are counted, and not taken apart."""
    response = browser.client.post(path, data=content, content_type=kind)

    assert response.status_code == status


@one_emulator
def test_a_header_has_a_limit(browser: Browser) -> None:
    """S23: also on a server that has none."""
    response = browser.get("/sums", headers={"Referer": "x" * 9_000})

    assert response.status_code == 431
    assert "Referer must have at most 8,190 characters" in response.text


@one_emulator
def test_a_file_name_has_a_limit(browser: Browser, snapshot: Callable[[], Any]) -> None:
    """S23: it is stored and shown, like any text."""
    party = browser.create_party()
    stored = snapshot()

    response = browser.post(
        f"{party}/guests", {**FORM, "file": (io.BytesIO(b"Ann,a@b.com"), "x" * 256)}
    )

    assert response.status_code == 413
    assert "the file name of file must have at most 255 characters" in response.text
    assert snapshot() == stored


@pytest.mark.parametrize("module", [pull_queues, streams])
def test_each_text_in_json_has_a_limit(module: Any) -> None:
    """S23: a type that a body is read as says how long each of its texts may be."""
    source = text_of(f"{module.__name__.replace('.', '/')}.py")
    types = {getattr(module, name) for name in re.findall(r"typed_body\((\w+),", source)}
    assert types

    for kind in types:
        for where, text in _texts(pydantic.TypeAdapter(kind).json_schema()):
            assert {"maxLength", "enum", "const"} & set(text), (kind, where)


def _texts(schema: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the texts that a JSON schema allows, and where."""
    if isinstance(schema, dict):
        if schema.get("type") == "string":
            yield where, schema
        for name, part in schema.items():
            yield from _texts(part, f"{where}.{name}")
    elif isinstance(schema, list):
        for part in schema:
            yield from _texts(part, where)
