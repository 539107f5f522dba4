"""Errors of errors: what transact finds in them."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud.ndb import tasklets

from rollforward.datastore import transactions

pytestmark = pytest.mark.fast


def test_the_error_of_a_failed_rollback_does_not_hide_the_first() -> None:
    """The earliest retried error counts, however deep it lies."""
    lost_race = rpc_errors.Aborted("lost the race")
    second = rpc_errors.InvalidArgument("no such transaction")
    second.__context__ = lost_race

    assert transactions.first_cause(second) is lost_race


def test_a_circular_chain_ends() -> None:
    """A chain that closes on itself is walked once."""
    aborted, second = rpc_errors.Aborted("one"), rpc_errors.NotFound("two")
    aborted.__cause__, second.__cause__ = second, aborted

    assert transactions.first_cause(second) is aborted


def test_what_transact_raises_has_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that surfaces can be printed, and caught by another transact."""

    def failed(*args: object, **kwargs: object) -> tasklets.Future:
        future = tasklets.Future()
        error = rpc_errors.InvalidArgument("no such transaction")
        error.__cause__ = rpc_errors.ServiceUnavailable("reply lost")
        future.set_exception(error)
        return future

    monkeypatch.setattr(transactions.ndb, "transaction_async", failed)

    with pytest.raises(rpc_errors.ServiceUnavailable) as raised:
        transactions.transact(lambda: None, sleep=lambda seconds: None)

    assert len(list(transactions._chain(raised.value))) < 10


def test_an_error_of_the_bodys_own_is_what_it_is() -> None:
    """A body that turns a retried error into its own is not run again for it."""
    body_error = ValueError("no such party")
    body_error.__context__ = rpc_errors.Aborted("elsewhere")

    assert transactions.first_cause(body_error) is None


def test_what_the_caller_was_handling_is_no_cause() -> None:
    """In an `except` block the error at hand is not taken for the transaction's."""
    at_hand = rpc_errors.ServiceUnavailable("the relay")
    error = rpc_errors.NotFound("no such database")
    error.__context__ = at_hand

    assert transactions.first_cause(error, at_hand) is None
