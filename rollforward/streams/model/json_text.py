"""JSON without spaces, by encoders that are built once.

`json.dumps` builds its C encoder for each call, which takes longer than encoding a small value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json import encoder as standard
from typing import Any

from rollforward.streams.model.errors import BadRecordError

# Far below the limit of a thread's stack, wherever the value is written or read.
MAX_DEPTH = 200
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
quoted: Callable[[str], str] = standard.encode_basestring_ascii
"""Return a text as JSON."""


def encoder(*, allow_nan: bool) -> Callable[[Any], str]:
    """Return a function that encodes a value as JSON.

    It raises like `json.dumps`, except RecursionError for a value that contains itself.
    """
    slow = json.JSONEncoder(separators=(",", ":"), allow_nan=allow_nan, check_circular=False)
    make = getattr(standard, "c_make_encoder", None)
    if make is None:
        return slow.encode
    parts = make(None, slow.default, quoted, None, ":", ",", False, False, allow_nan)
    return lambda value: "".join(parts(value, 0))


def decoded(text: str) -> Any:
    """Return the value of a JSON text without surrounding white space."""
    try:
        value, end = _scan(text, 0)
    except StopIteration as stop:
        raise json.JSONDecodeError("Expecting value", text, stop.value) from None
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def check_depth(text: str) -> None:
    """Check that a JSON text can be decoded in any thread.

    Raises:
        BadRecordError: its lists and objects are nested too deeply.
    """
    if len(text) <= 2 * MAX_DEPTH or text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = deepest = 0
    for sign in re.findall(r"[\[{\]}]", _STRINGS.sub("", text)):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise BadRecordError(f"the depth of a value must be at most {MAX_DEPTH}, got {deepest}")
