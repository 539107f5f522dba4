"""Errors of errors: what transact finds in them."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as rpc_errors

from models import transactions


def test_the_error_of_a_failed_rollback_does_not_hide_the_first() -> None:
    """The earliest retried error counts, however deep it lies."""
    first = rpc_errors.Aborted("lost the race")
    second = rpc_errors.InvalidArgument("no such transaction")
    second.__context__ = first

    assert transactions._first_cause(second) is first


def test_a_circular_chain_ends() -> None:
    """A chain that closes on itself is walked once."""
    first, second = rpc_errors.Aborted("one"), rpc_errors.NotFound("two")
    first.__cause__, second.__cause__ = second, first

    assert transactions._first_cause(second) is first


def test_what_transact_raises_has_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that surfaces can be printed, and caught by another transact."""

    def failing(*args: object, **kwargs: object) -> None:
        try:
            raise rpc_errors.ServiceUnavailable("reply lost")
        except rpc_errors.ServiceUnavailable as error:
            raise rpc_errors.InvalidArgument("no such transaction") from error

    monkeypatch.setattr(transactions.ndb, "transaction", failing)

    with pytest.raises(rpc_errors.ServiceUnavailable) as raised:
        transactions.transact(lambda: None, pause=lambda seconds: None)

    assert len(list(transactions._chain(raised.value))) < 10
