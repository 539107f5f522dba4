"""Splits and merges on the services, with a fault at each remote call."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.streams import PushedRecord
from rollforward.streams.model.errors import BadLayoutError
from rollforward.tasks import Retry, Unavailable
from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import World
from tests.rollforward.streams.harness import WEBLOG
from tests.rollforward.streams.under_faults.test_streams import WebLog

MIDDLE = 2**15


class GrowingWebLog(WebLog):
    """The same, while an interval is split after the first push, and merged after the second."""

    def push(self, records: list[PushedRecord], *, is_over: bool = False) -> None:
        super().push(records, is_over=is_over)
        clients = self.world.clients
        begins = [each.first_slot for each in WEBLOG.status(clients).computations["hits"].intervals]
        try:
            if is_over:
                return
            if MIDDLE in begins:
                WEBLOG.merge(clients, "hits", MIDDLE)
            else:
                WEBLOG.split(clients, "hits", MIDDLE)
        except BadLayoutError:
            return  # Its first attempt was applied after all.
        except (Retry, Unavailable) as error:
            raise rpc_errors.ServiceUnavailable(str(error)) from error  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_exact_while_intervals_are_split_and_merged(world: World, kind: str) -> None:
    """G1, G2, G10: with a fault at any call of a split or merge, and of what comes after."""
    Explorer(world, GrowingWebLog(world)).explore([kind], at_most=2)
