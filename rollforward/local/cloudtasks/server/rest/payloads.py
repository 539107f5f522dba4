"""Requests in JSON, read as the service reads them: unknown fields are refused by name.

Source: protobuf.dev/programming-guides/json
"""

import base64
import binascii
from typing import Any

from google.protobuf import json_format
from google.rpc import error_details_pb2

from rollforward.local.cloudtasks.protocol import errors
from rollforward.local.cloudtasks.protocol.errors import Refused

_MAX_PROBLEM = 500
_URL_SAFE = str.maketrans("-_", "+/")


def parsed(fields: dict[str, Any], message: Any) -> Any:
    """Return a message with these fields.

    Raises:
        Refused: INVALID_ARGUMENT, naming the field.
    """
    _check(fields, message.DESCRIPTOR, "")
    try:
        return json_format.ParseDict(fields, message)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        problem = str(error)[:_MAX_PROBLEM]
    raise bad_request(f"Invalid JSON payload received. {problem}")


def bad_request(message: str) -> Refused:
    """Refuse a request that is not of its API's form."""
    description = errors.text_of(message, _MAX_PROBLEM)
    violation = error_details_pb2.BadRequest.FieldViolation(description=description)
    return errors.invalid(message, error_details_pb2.BadRequest(field_violations=[violation]))


def _check(fields: dict[str, Any], descriptor: Any, path: str) -> None:
    """Refuse fields that the message does not have, and bytes that are not base64."""
    for name, value in fields.items():
        field = _field_of(descriptor, name)
        if field is None:
            at = f" at '{path}'" if path else ""
            raise bad_request(
                f'Invalid JSON payload received. Unknown name "{name:.100}"{at}: Cannot find field.'
            )
        inner = f"{path}.{field.name}".lstrip(".")
        values = value if field.is_repeated and isinstance(value, list) else [value]
        for index, part in enumerate(values):
            place = f"{inner}[{index}]" if field.is_repeated else inner
            if part is None:
                continue
            if field.type == field.TYPE_BYTES:
                _check_base64(part, place)
            elif _is_plain(field) and isinstance(part, dict):
                _check(part, field.message_type, place)


def _field_of(descriptor: Any, name: str) -> Any:
    if not name.isascii():
        return None  # Half of a surrogate pair is no text that could be looked up.
    return descriptor.fields_by_camelcase_name.get(name) or descriptor.fields_by_name.get(name)


def _is_plain(field: Any) -> bool:
    """Return whether JSON shows a field as the fields of its message."""
    kind = field.message_type
    if kind is None or kind.GetOptions().map_entry:
        return False
    return not kind.full_name.startswith("google.protobuf.")


def _check_base64(value: Any, place: str) -> None:
    try:
        padded = value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4)
        base64.b64decode(padded.translate(_URL_SAFE), validate=True)
    except (AttributeError, ValueError, binascii.Error):
        raise bad_request(
            f"Invalid value at '{place}' (TYPE_BYTES), Base64 decoding failed."
        ) from None
