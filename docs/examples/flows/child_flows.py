"""Child flows: a shipment starts a flow for each parcel, and each signals back at its end."""

from __future__ import annotations

import contextlib

from rollforward.flows import FlowEndedError, Steps, UnknownFlowError, flow


# howto: from here
def start_parcels(shipment_id: str, addresses: list[str]) -> None:
    for number, address in enumerate(addresses):
        parcel.start(f"{shipment_id}-{number}", shipment_id, address)


def recall_parcels(shipment_id: str, count: int) -> None:
    for number in range(count):
        with contextlib.suppress(UnknownFlowError):  # It ended long ago, and was deleted.
            parcel.cancel(f"{shipment_id}-{number}")


@flow("shipments")
def shipment(step: Steps, addresses: list[str]) -> dict[str, str]:
    step.commit("start parcels", start_parcels, step.flow_id, addresses)
    step.undo_commit("recall parcels", recall_parcels, step.flow_id, len(addresses))
    ends = {}
    for number in range(len(addresses)):
        end = step.wait_for(f"parcel end {number}", event="parcel")
        if end is not None:  # Without a time-out it is an event.
            ends[end.payload["address"]] = end.payload["end"]
    return ends


def report(shipment_id: str, parcel_id: str, address: str, end: str) -> None:
    with contextlib.suppress(FlowEndedError):  # The shipment was recalled meanwhile.
        payload = {"address": address, "end": end}
        shipment.signal(shipment_id, "parcel", payload, event_id=parcel_id)


@flow("parcels")
def parcel(step: Steps, shipment_id: str, address: str) -> None:
    scan = step.wait_for("scan", timeout_s=14 * 24 * 3600)
    end = "lost" if scan is None else str(scan.payload)
    step.commit("report", report, shipment_id, step.flow_id, address, end)


# howto: to here
