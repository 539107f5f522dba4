"""Bodies of requests are as long as is allowed, whether they say their length or not."""

from __future__ import annotations

import io
from typing import Any

import pytest
from flask import Flask, jsonify

from rollforward.flask.api.item_lists import NDJSON, item_list

pytestmark = pytest.mark.fast

LONGEST = b"1\n2\n3\n4\n5\n"


@pytest.fixture
def app() -> Flask:
    """An app that returns the numbers of a list in at most ten bytes."""
    app = Flask(__name__)

    @app.post("/numbers")
    def numbers() -> Any:
        return jsonify(item_list(int, max_items=100, max_bytes=len(LONGEST)))

    return app


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(
    ("body", "status"),
    [(LONGEST, 200), (LONGEST + b"\n", 413), (LONGEST * 50, 413)],
    ids=["longest", "longer", "much longer"],
)
def test_a_list_that_is_too_long_is_refused_and_never_cut(
    app: Flask, body: bytes, status: int, *, is_chunked: bool
) -> None:
    """The numbers behind the limit would be lost without a word; so is one byte too many."""
    answer = app.test_client().post(
        "/numbers",
        input_stream=io.BytesIO(body),
        content_type=NDJSON,
        headers={"Transfer-Encoding": "chunked"} if is_chunked else {},
        environ_overrides={"wsgi.input_terminated": is_chunked},
    )
    assert answer.status_code == status
    if status == 200:
        assert answer.json == [1, 2, 3, 4, 5]


def test_bad_items_are_named_by_their_lines_from_one(app: Flask) -> None:
    """Whoever sent a file looks for them there."""
    answer = app.test_client().post("/numbers", data=b"1\nx\n{}\n", content_type=NDJSON)

    assert answer.status_code == 400
    assert [error["line"] for error in answer.json["errors"]] == [2, 3]
    assert answer.json["detail"].endswith("mend the items of line 2, 3.")
    many = app.test_client().post("/numbers", data=b"x\n" * 5, content_type=NDJSON)
    assert many.json["detail"].endswith("of line 1, 2, 3, 4, 5.")


def test_a_compressed_body_is_refused_before_it_is_read(app: Flask) -> None:
    """A small one could become a large one."""
    answer = app.test_client().post(
        "/numbers", data=b"1", content_type=NDJSON, headers={"Content-Encoding": "gzip"}
    )

    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("body", "status"),
    [({"items": [1, 2]}, 200), ({"items": [1], "more": 1}, 400), ({"more": [1]}, 400), ([1], 400)],
)
def test_a_list_is_an_object_with_items_alone(app: Flask, body: object, status: int) -> None:
    """A name that is none would be lost without a word."""
    app.post("/longer")(lambda: jsonify(item_list(int, max_items=100, max_bytes=100)))
    answer = app.test_client().post("/longer", json=body)

    assert answer.status_code == status
    assert status != 200 or answer.json == [1, 2]
