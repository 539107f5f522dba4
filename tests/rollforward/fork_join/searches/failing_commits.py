"""Commits of inserts into a fork-join queue that go wrong, as tests want them to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.fork_join import insert


def fail_first(patch: pytest.MonkeyPatch, *errors: Exception) -> list[Exception]:
    """Let the first commits raise, one error each; return the remaining errors."""
    sound, coming = insert.insert_rows, list(errors)

    def insert_rows(client: Any, entities: Any) -> None:
        if coming:
            raise coming.pop(0)
        sound(client, entities)

    patch.setattr(insert, "insert_rows", insert_rows)
    return coming


@contextmanager
def lost_replies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each commit take effect, and lose its reply and the answer of each look for it."""
    sound = insert.insert_rows

    def insert_rows(client: Any, entities: Any) -> None:
        sound(client, entities)
        raise rpc_errors.DeadlineExceeded("made by a test")

    def get_multi(keys: Any) -> Any:
        raise rpc_errors.DeadlineExceeded("made by a test")

    with monkeypatch.context() as patch:
        patch.setattr(insert, "insert_rows", insert_rows)
        patch.setattr(insert.ndb, "get_multi", get_multi)
        yield
