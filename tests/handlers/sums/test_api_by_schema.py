"""The API against its own description, with generated requests. S29."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode

from handlers.sums.openapi import DESCRIPTION
from pipelines.sums import sums
from tests.infra.world import World

pytestmark = [
    pytest.mark.parametrize("services", ["datastore"], indirect=True),
    # Threads of the app draw numbers while it makes up requests.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]

EXAMPLES = 15
# A list that is too long is refused by 413, which is none of the check's own statuses.
REFUSALS = {"expected-statuses": ["4xx", "5xx"]}
OPERATIONS = [
    (path, method, mode)
    for path, item in DESCRIPTION["paths"].items()
    for method in item.keys() - {"parameters"}
    for mode in GenerationMode
    # What takes no input cannot be asked wrongly.
    if mode is GenerationMode.POSITIVE or "parameters" in item
]


@pytest.mark.parametrize(("path", "method", "mode"), sorted(OPERATIONS))
def test_whatever_is_asked_the_answer_is_one_that_is_described(
    world: World, path: str, method: str, mode: GenerationMode
) -> None:
    """No error of ours, no status or shape that is not described, nothing odd that is accepted."""
    with world.context():
        sums.create("visitors")
    numbers = itertools.count()
    config = SchemathesisConfig.from_dict({"checks": {"negative_data_rejection": REFUSALS}})
    schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", world.app, config=config)

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        if mode is GenerationMode.POSITIVE and "name" in case.path_parameters:
            case.path_parameters["name"] = "visitors"  # A name that was drawn is hardly a sum's.
        if mode is GenerationMode.POSITIVE and "Idempotency-Key" in (case.headers or {}):
            # The same key with another body is refused, and rightly.
            case.headers["Idempotency-Key"] = f"{next(numbers)}"
        # 5.0 is an integer to JSON Schema, and none to us: beyond 2**53 a reader would round it.
        is_object = mode is GenerationMode.POSITIVE and isinstance(case.body, dict)
        assume(not is_object or all(type(amount) is int for amount in _amounts(case.body)))
        # No schema of a body knows the headers: a key for all excludes a key with each.
        has_keys = is_object and any("key" in item for item in case.body.get("items", ()))
        assume(not (has_keys and "Idempotency-Key" in (case.headers or {})))
        # To JSON Schema lines are any text.
        assume(mode is GenerationMode.NEGATIVE or case.media_type != "application/x-ndjson")
        case.call_and_validate()

    ask()


def _amounts(body: dict[str, Any]) -> list[Any]:
    """Return the amounts of an addition, or of a batch."""
    return [item["amount"] for item in body.get("items", [body])]
