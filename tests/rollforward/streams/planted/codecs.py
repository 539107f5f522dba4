"""Codecs with a part of them left out or turned round: what the schedules have to notice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from rollforward.streams.execution import bundle_runner
from rollforward.streams.model.codecs import Codecs, Undecodable
from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.storage.remote_calls import UnworkableError
from rollforward.streams.workers import worker
from rollforward.streams.workers.worker import Worker
from tests.rollforward.streams.scenarios.coding import Coding


def blames_the_record(schedule: Coding, patch: pytest.MonkeyPatch) -> None:
    """Code without a codec makes what it cannot read a dead letter."""

    @contextlib.contextmanager
    def blame() -> Iterator[None]:
        try:
            yield
        except (UnworkableError, MemoryError):
            raise
        except Exception as error:
            raise UnworkableError(f"{error}") from error

    patch.setattr(worker, "find_culprit", blame)


def decodes_before_the_note(schedule: Coding, patch: pytest.MonkeyPatch) -> None:
    """A worker decodes its records before it notes which one may kill it."""
    real = Worker._gather

    def gather(self: Worker, *args: Any, are_decoded: bool = True) -> Any:
        return real(self, *args)

    patch.setattr(Worker, "_gather", gather)


def retries_for_ever(schedule: Coding, patch: pytest.MonkeyPatch) -> None:
    """An error of a codec ends the worker, and its task comes again."""
    real = Codecs.read

    def read(self: Codecs, text: str) -> Any:
        value = real(self, text)
        if isinstance(value, Undecodable):
            raise MissingCodeError(value.error)
        return value

    patch.setattr(Codecs, "read", read)


def passes_it_on(schedule: Coding, patch: pytest.MonkeyPatch) -> None:
    """A value that was not decoded is dropped without a dead letter."""
    real = bundle_runner._BundleRunner._take

    def take(self: Any, record: Any) -> None:
        if isinstance(record.value, Undecodable):
            self.effects.counts.records += 1
        else:
            real(self, record)

    patch.setattr(bundle_runner._BundleRunner, "_take", take)


VARIANTS = (blames_the_record, decodes_before_the_note, retries_for_ever, passes_it_on)
