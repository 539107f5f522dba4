"""Clients with only an emulator, for a single worker in this process without any other load."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from benchmarks.harness.testbed import PROJECT
from rollforward.local.services.standalone import datastore_emulator
from rollforward.outbox import InlineRelay
from rollforward.runtime import Clients, Meter, NoCache, open_datastore
from rollforward.runtime.messages import Message


class NoTasks:
    """A queue that discards all tasks, as the benchmark calls the worker itself."""

    def create(self, message: Message) -> bool:
        return True

    def create_many(self, messages: Sequence[Message]) -> list[bool]:
        return [True] * len(messages)

    def create_all(self, messages: Sequence[Message]) -> list[bool | Exception]:
        return [True] * len(messages)

    def queues(self) -> list[str]:
        return []

    def ping(self) -> bool:
        return True


@contextlib.contextmanager
def lone_clients() -> Iterator[Clients]:
    """Start an emulator that locks; yield clients without any other service."""
    with datastore_emulator("firestore") as datastore:
        meter = Meter()
        yield Clients(
            datastore=open_datastore(PROJECT, emulator=datastore, interceptors=[meter]),
            tasks=NoTasks(),
            cache=NoCache(),
            meter=meter,
            relay=InlineRelay(),
        )
