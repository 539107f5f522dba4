"""OpenAPI 3.1 description of the API; a test holds the API to it."""

from __future__ import annotations

from typing import Any

from pipelines.sums.sums import MAX_AMOUNT, NAME

# Of an item: printable ASCII, and not blanks alone.
KEY_PATTERN = r"^ *[\x21-\x7e][\x20-\x7e]*$"


def _problem(description: str, schema: str = "Problem", **headers: str) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": description,
        "content": {
            "application/problem+json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}
        },
    }
    if headers:
        response["headers"] = {
            name.replace("_", "-"): {"schema": {"type": "integer"}, "description": text}
            for name, text in headers.items()
        }
    return response


def _json(description: str, schema: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }


def _list_of(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a batch's items that have exactly these properties."""
    item = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "array", "minItems": 1, "maxItems": 1000, "items": item}


_TOO_MANY = _problem("Too many requests of this address.", Retry_After="Seconds.")
_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The sum's name. Sums are made on the page /sums.",
    "schema": {"type": "string", "pattern": f"^{NAME.pattern}$"},
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Makes this request count once, however often it is sent within a day. All "
    "callers of a sum share its keys, so make yours random. Without one, a response of 503 means "
    "that it may count.",
    "schema": {"type": "string", "pattern": "^[\\x20-\\x7e]{1,200}$"},
}
_AMOUNT = {
    "type": "integer",
    "minimum": -MAX_AMOUNT,
    "maximum": MAX_AMOUNT,
    "description": "Written without fraction or exponent: 5, and not 5.0.",
}
_ITEM_KEY = {"type": "string", "pattern": KEY_PATTERN, "maxLength": 200}
_INTEGER = {"type": "integer"}
_COUNT = {"type": "integer", "minimum": 0}
_PROBLEM = {
    "type": {"type": "string"},
    "title": {"type": "string"},
    "status": _INTEGER,
    "detail": {"type": "string"},
}

_ACCEPTED: dict[str, Any] = {
    "sum": {"type": "string"},
    "accepted": {"const": True},
    "repeat": {
        "type": "boolean",
        "description": "Whether this Idempotency-Key had been accepted before.",
    },
    "ref": {"type": "string", "description": "Where the addition lies until it is folded."},
}

DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Rollforward: sums",
        "version": "1",
        "description": "Many small additions, gathered into few writes. An addition that was "
        "accepted is added once, within about a second. No login, and no cookies.",
    },
    "paths": {
        "/api/v1/sums/{name}": {
            "parameters": [_NAME],
            "get": {
                "operationId": "readSum",
                "summary": "A sum, and what still waits to be added",
                "responses": {
                    "200": _json("The sum.", "Sum"),
                    "404": _problem("There is no such sum."),
                    "429": _TOO_MANY,
                    "503": _problem("Datastore does not answer.", Retry_After="Seconds."),
                },
            },
            "post": {
                "operationId": "addToSum",
                "summary": "Add to a sum",
                "parameters": [
                    _KEY,
                    {
                        "name": "wait_ms",
                        "in": "query",
                        "description": "Wait so long for the addition to be folded.",
                        "schema": {"type": "integer", "minimum": 0, "maximum": 5000},
                    },
                ],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Addition"}}
                    },
                },
                "responses": {
                    "200": _json("It was asked for, and is folded.", "FoldResult"),
                    "202": _json("The addition is safe, and will be folded.", "Accepted"),
                    "400": _problem("Not JSON, no whole number, out of range, or more than it."),
                    "404": _problem("There is no such sum."),
                    "413": _problem("The body is too large."),
                    "415": _problem("The body is not declared as JSON."),
                    "422": _problem("This Idempotency-Key was used with another body."),
                    "429": _TOO_MANY,
                    "503": _problem(
                        "Not accepted. Without an Idempotency-Key it may still count.",
                        Retry_After="Seconds.",
                    ),
                },
            },
        },
        "/api/v1/sums/{name}/batch": {
            "parameters": [_NAME],
            "post": {
                "operationId": "addBatchToSum",
                "summary": "Add up to 1000 amounts to a sum",
                "description": "Without keys of their own all amounts are added or none, and an "
                "Idempotency-Key is of the whole batch. With keys of their own each is answered "
                "for itself, and the whole batch can be sent again; if only some have keys, it is "
                "refused. A batch with a bad item changes nothing; `errors` names its lines.",
                "parameters": [_KEY],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Batch"}},
                        "application/x-ndjson": {"schema": {"type": "string"}},
                    },
                },
                "responses": {
                    "202": _json("All additions are safe.", "AcceptedBatch"),
                    "207": _json("Some are not: each item says so.", "AcceptedBatch"),
                    "400": _problem(
                        "No items, or bad ones, which `errors` names by line.", "BadBatch"
                    ),
                    "404": _problem("There is no such sum."),
                    "413": _problem("The body is too large, or has too many items."),
                    "415": _problem("The body is not declared as JSON or NDJSON."),
                    "422": _problem("This Idempotency-Key was used with another body."),
                    "429": _TOO_MANY,
                    "503": _problem(
                        "None is accepted. Without keys they may still count.",
                        Retry_After="Seconds.",
                    ),
                },
            },
        },
        "/api/v1/openapi.json": {
            "get": {
                "operationId": "describe",
                "summary": "This description",
                "responses": {
                    "200": {
                        "description": "The description.",
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    },
                    "429": _TOO_MANY,
                },
            }
        },
    },
    "components": {
        "schemas": {
            "Addition": {
                "type": "object",
                "properties": {
                    "amount": _AMOUNT,
                },
                "required": ["amount"],
                "additionalProperties": False,
            },
            "Batch": {
                "type": "object",
                "properties": {
                    "items": {
                        "description": "Each with a key of its own, or none with one.",
                        "anyOf": [
                            _list_of({"amount": _AMOUNT}),
                            _list_of({"amount": _AMOUNT, "key": _ITEM_KEY}),
                        ],
                    }
                },
                "required": ["items"],
                "additionalProperties": False,
            },
            "AcceptedBatch": {
                "type": "object",
                "properties": {
                    "sum": {"type": "string"},
                    "accepted": {**_COUNT, "description": "Items that are safe."},
                    "items": {
                        "type": "array",
                        "description": "In the order of the request.",
                        "items": {
                            "type": "object",
                            "properties": {
                                "accepted": {"type": "boolean"},
                                "repeat": _ACCEPTED["repeat"],
                                "ref": _ACCEPTED["ref"],
                                "status": {**_INTEGER, "description": "422, 500 or 503."},
                                "detail": {"type": "string"},
                            },
                            "required": ["accepted"],
                        },
                    },
                },
                "required": ["sum", "accepted", "items"],
            },
            "Accepted": {
                "type": "object",
                "properties": _ACCEPTED,
                "required": list(_ACCEPTED),
            },
            "FoldResult": {
                "type": "object",
                "properties": {
                    **_ACCEPTED,
                    "total": {
                        **_INTEGER,
                        "description": "The sum after this addition. After a repeat of one that "
                        "did not wait: the sum now.",
                    },
                },
                "required": [*_ACCEPTED, "total"],
            },
            "Sum": {
                "type": "object",
                "properties": {
                    "sum": {"type": "string"},
                    "total": _INTEGER,
                    "items": {**_COUNT, "description": "Additions that are folded."},
                    "batches": {**_COUNT, "description": "Writes of the sum's row."},
                    "waiting": {**_COUNT, "description": "Additions that are not folded yet."},
                },
                "required": ["sum", "total", "items", "batches", "waiting"],
            },
            "BadBatch": {
                "type": "object",
                "description": "A problem, and the bad items of a batch, if that is what it is.",
                "properties": {
                    **_PROBLEM,
                    "errors": {
                        "type": "array",
                        "description": "The bad items of a batch, 20 at most.",
                        "items": {
                            "type": "object",
                            "properties": {
                                "line": {**_COUNT, "description": "From 1."},
                                "detail": {"type": "string"},
                            },
                            "required": ["line", "detail"],
                        },
                    },
                },
                "required": [*_PROBLEM],
            },
            "Problem": {
                "type": "object",
                "description": "RFC 9457.",
                "properties": _PROBLEM,
                "required": [*_PROBLEM],
            },
        }
    },
}
