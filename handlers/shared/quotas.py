"""Quotas of the demos: a visitor's work is accepted, or refused by 429 with a time to retry.

A visitor is an address as the platform's front end saw it, as with the limit on requests.
"""

from __future__ import annotations

from flask import Response, after_this_request
from werkzeug.exceptions import TooManyRequests

from pipelines import quotas
from pipelines.quilt.design import Design
from pipelines.quotas import OverQuotaError, Quota, Work
from pipelines.sums.load import Load
from rollforward.flask.context import clients, settings
from rollforward.flask.guards.callers import caller

# Ten presses in a minute are somebody who is curious. These bounds are those of a small app: about
# a minute or two of its work, and half of that for one visitor.
QUILTS = Quota("quilt", "squares", total=5_200, per_visitor=2_600)
SUMS = Quota("sums", "items", total=60_000, per_visitor=30_000, is_serial=False)
INVITATIONS = Quota("invitations", "guests and mails", total=120_000, per_visitor=40_000)
SCHOOLS = Quota("grades", "students to count", total=200_000, per_visitor=100_000)
ORDERS = Quota("orders", "orders", total=4_800, per_visitor=2_400)
TENANTS = Quota("tenants", "tasks of tenants", total=48_000, per_visitor=24_000)
UPLOADS = Quota("uploads", "bytes", total=64 * 1024**2, per_visitor=32 * 1024**2)
# What a small app does in a second, about.
SQUARES_AT_A_TIME = 8
GUESTS_PER_S = 500
MAILS_PER_S = 200
ORDERS_PER_S = 10
SIGNALS_PER_S = 50
TENANTS_PER_S = 60
COUNTED_PER_S = 5_000
UPLOADED_BYTES_PER_S = 500_000
# About what the sample of the web log has.
SAMPLE_BYTES = 1_000_000


def let_in(quota: Quota, work_id: str, units: int, takes_s: float) -> None:
    """Reserve quota for the visitor's new work, once for its id. A 4xx releases it.

    Raises:
        TooManyRequests: it would be too much just now.
    """
    work = Work(work_id, caller(settings().platform), units, takes_s)
    try:
        is_new = quotas.reserve(clients(), quota, work)
    except OverQuotaError as error:
        raise TooManyRequests(f"{error}.", retry_after=error.retry_after_s) from error

    def give_back(response: Response) -> Response:
        if is_new and 400 <= response.status_code < 500:
            quotas.cancel(quota, work_id)
        return response

    after_this_request(give_back)


def let_in_quilt(quilt: str, design: Design) -> None:
    """Enter a quilt that is about to be made."""
    square_s = max(0.02, design.pace_ms / 1000)
    let_in(QUILTS, quilt, design.count, design.count * square_s / SQUARES_AT_A_TIME)


def let_in_orders(sale: str, count: int, bank_ms: int) -> None:
    """Enter the orders of a sale that is about to open."""
    let_in(ORDERS, sale, count, count * max(1 / ORDERS_PER_S, bank_ms / 1000 / SQUARES_AT_A_TIME))


def let_in_courier(visit: str, count: int) -> None:
    """Enter a courier's visit to the orders of a sale, each of which takes an event."""
    let_in(ORDERS, visit, count, count / SIGNALS_PER_S)


def let_in_tenants(rush: str, count: int, takes_ms: int) -> None:
    """Enter the tasks of a rush that is about to begin, four at a time."""
    let_in(TENANTS, rush, count, count * max(1 / TENANTS_PER_S, takes_ms / 4000))


def let_in_load(load: Load) -> None:
    """Enter a load that a sum is about to be put under."""
    let_in(SUMS, load.id, load.items, load.seconds)


def let_in_guests(import_id: str, guests: int) -> None:
    """Enter a list of guests that is about to be read."""
    let_in(INVITATIONS, import_id, guests, guests / GUESTS_PER_S)


def let_in_mails(party_id: str, change: int, guests: int) -> None:
    """Enter the mails about a change, which are sent once however often that is asked for."""
    let_in(INVITATIONS, f"{party_id}.{change}.{guests}", guests, guests / MAILS_PER_S)


def let_in_upload(upload_id: str, size_bytes: int) -> None:
    """Enter an upload that is about to be stored, and read in the background."""
    let_in(UPLOADS, upload_id, size_bytes, size_bytes / UPLOADED_BYTES_PER_S)
