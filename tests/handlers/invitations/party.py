"""A party of the tests: where its page is, and who is on its list."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from tests.infra.world import World

if TYPE_CHECKING:
    from tests.handlers.conftest import Browser

ID = "a" * 32


PAGE = f"/invitations/{ID}"


GUESTS = "name,email\nAnn,ann@example.com\nbad\nBob,bob@example.com\n"


def upload(content: bytes | str, name: str = "guests.csv", form_id: str = "b" * 32) -> Any:
    data = content.encode() if isinstance(content, str) else content
    return {"id": form_id, "file": (io.BytesIO(data), name)}


def invite(browser: Browser, world: World, content: str = GUESTS) -> None:
    response = browser.post(f"{PAGE}/guests", upload(content))
    assert response.status_code == 303, response.text
    world.settle()
