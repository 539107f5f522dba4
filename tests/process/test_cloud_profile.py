"""An app that is as slow as the cloud, on the local platform: it says so, and is exact."""

from __future__ import annotations

from typing import Any

import pytest

from tests.infra.runs import sampling
from tests.infra.stack import running_stack, until
from tests.process.test_own_app import LIMIT_S, cell, page

pytestmark = pytest.mark.process


@sampling.long
def test_a_shop_in_the_cloud_sells_once_and_the_table_of_services_says_what_it_is_like() -> None:
    """Forms are sent twice; the view follows. Datastore is the emulator that locks."""
    with running_stack("--target", "docs.examples.shop:serve", "--like=cloud") as shop:
        notes = {row["name"]: row["note"] for row in services(shop)}
        assert shop.press("/open").status_code == 200
        for _ in range(3):
            shop.press("/buy", product="lamp", form_id="f" * 32)
        shop.press("/buy", product="lamp")
        until(lambda: cell(page(shop), "lamp", 3) == "2", LIMIT_S)

    assert "2 workers, latencies as in cloud of 20" in notes["App"]
    assert "firestore" in notes["Datastore"]


def services(stack: Any) -> Any:
    """Return the table of services, as the console has it."""
    return stack.control("/api/v1/services")["services"]
