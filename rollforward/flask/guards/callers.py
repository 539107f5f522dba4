"""The address that a request came from, as far as it can be believed."""

from __future__ import annotations

import ipaddress

from flask import request

from rollforward.flask.settings import APP_ENGINE, CLOUD_RUN

# The addresses of one subscriber, who may choose among them.
SUBSCRIBER_BITS_V6 = 64


def caller(platform: str) -> str:
    """Return the address that a request came from, as the platform's own front end saw it."""
    if platform == APP_ENGINE:  # It strips this header from outsiders.
        text = request.headers.get("X-AppEngine-User-IP", "")
    elif platform == CLOUD_RUN:  # It adds the last one; a caller may have sent the others.
        text = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
    else:
        text = request.remote_addr or ""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "unknown"
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, SUBSCRIBER_BITS_V6), strict=False))
