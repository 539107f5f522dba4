"""Computations that are attached, replaced and detached on the services, with faults."""

from __future__ import annotations

import contextlib

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.streams import PushedRecord
from rollforward.streams.model.errors import TopologyError
from rollforward.tasks import Retry, Unavailable
from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import World
from tests.rollforward.streams.harness import WEBLOG
from tests.rollforward.streams.under_faults.test_streams import WebLog


class ChangingWebLog(WebLog):
    """The same, while `hits` is replaced, and a computation comes and leaves."""

    def push(self, records: list[PushedRecord], *, is_over: bool = False) -> None:
        super().push(records, is_over=is_over)
        clients = self.world.clients
        try:
            WEBLOG.replace(clients, "hits", version=2)
            if is_over:
                WEBLOG.detach(clients, "seen")
            else:
                # It may be leaving, when all of this is done again.
                with contextlib.suppress(TopologyError):
                    WEBLOG.attach(clients, "seen")
        except (Retry, Unavailable) as error:
            raise rpc_errors.ServiceUnavailable(str(error)) from error  # type: ignore[no-untyped-call]

    def is_done(self, tag: str) -> bool:
        return super().is_done(tag) and not WEBLOG.topology(self.world.clients).is_changing

    def check(self, tag: str, fault: str) -> None:
        super().check(tag, fault)
        found = WEBLOG.topology(self.world.clients)
        done = sorted((each.computation, each.action) for each in found.changes)
        assert found.parts["hits"].version == 2, fault
        assert done in (
            [("hits", "replaced"), ("seen", "attached"), ("seen", "detached")],
            [("hits", "replaced"), ("seen", "detached")],  # It left before all knew that it came.
        ), fault


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_exact_while_computations_change(world: World, kind: str) -> None:
    """G1, G2, G15: with a fault at any call of a change, and of what comes after."""
    Explorer(world, ChangingWebLog(world)).explore([kind], at_most=2)
