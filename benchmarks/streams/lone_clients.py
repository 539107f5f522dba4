"""Clients of an emulator alone: what one worker in this process needs, with nothing beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from benchmarks.harness.testbed import PROJECT
from rollforward.local.services.standalone import datastore_emulator
from rollforward.outbox import InlineRelay
from rollforward.runtime import Clients, Meter, NoCache, open_datastore
from rollforward.runtime.messages import Message


class NoTasks:
    """A queue that forgets: the worker is called here."""

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
    """Start an emulator that locks; yield clients that have nothing else."""
    with datastore_emulator("firestore") as datastore:
        meter = Meter()
        yield Clients(
            datastore=open_datastore(PROJECT, emulator=datastore, interceptors=[meter]),
            tasks=NoTasks(),
            cache=NoCache(),
            meter=meter,
            relay=InlineRelay(),
        )
